"""Views: randomly augmented copies of preprocessed images, drawn again exactly from a seed and an image's number."""
