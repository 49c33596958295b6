"""What a loaded model is compared with: transformers, and published accuracies."""
