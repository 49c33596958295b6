"""Names and defaults of arguments: a spec with the published values is the method as it comes."""

from __future__ import annotations

import pytest

import lmr

TPT = "lr=5e-3, weight_decay=0.01, views=64, keep=0.1, context='a photo of a'"
PUBLISHED = [
    "eata(lr=2.5e-4, optimizer='adam', margin=0.4, diversity=0.05, fisher=2000.0)",
    "sar(lr=1e-3, rho=0.05, recovery=0.2, margin=0.4)",
    "deyo(lr=1e-3, optimizer='sgd', nesterov=False, margin=0.5, weight_margin=0.4, plpd=0.2, patches=4, aug='patch')",
    "roid(lr=1e-3, optimizer='adam', momentum_source=0.99, weighting=True, consistency=True, prior_correction=True)",
    "cmf(lr=1e-3, optimizer='adam', prior_correction=True, alpha=0.99, gamma=0.99, q=0.005)",
    "rotta(lr=1e-3, memory=64, every=64, nu=1e-3, age=1.0, uncertainty=1.0)",
    "memo(lr=1e-5, optimizer='adamw', weight_decay=0.01, views=64)",
    f"tpt({TPT})",
    f"ctpt({TPT}, dispersion=50.0)",
    f"otpt({TPT}, orthogonality=18.0)",
    f"rtpt({TPT}, neighbours=20, temperature=0.01)",
    f"dynaprompt({TPT}, prompts=10, selection='official')",
    "dmn(alpha=1.0, beta=5.5, memory=50, views=1, keep=0.1)",
    "watt(lr=1e-3, mode='s', inner=2, rounds=5)",
    "clipartt(lr=1e-3, top=3, steps=10)",
    "cliptta(lr=1e-4, steps=10, shots=4, sample=40, memory=True)",
    "bca(tau1=0.05, c1=20000, tau2=0.65, c2=1, views=1)",
    "stata(alpha=1.0, smooth=1.0, neighbours=3, rounds=10)",
    "oga(shots=8, tau=0.05, normalize=False)",
    "dota(epsilon=1e-4, sigma=2e-3, eta=0.3, rho=0.02, views=1, keep=0.1)",
    "onzeta(tau_text=0.01, tau_image=0.04, cw=0.5, cr=20.0, alpha=1.0, beta=0.8, length=None)",
    "zero(views=64, keep=0.3)",
    "tps(lr=5e-3, weight_decay=0.01, views=64, keep=0.1, steps=1, per_class=True)",
    "mta(views=64)",
    "infomax(lr=1e-3, optimizer='adam', weight_decay=0.0, prior='uniform', strength=1.0, emit='before', margin=None)",
    "infomax_both(lr=1e-3, optimizer='adamw', weight_decay=0.01, alpha=0.1, power=0.3, top=5)",
    "subtta(loss='mint', lr=1e-3, optimizer='adamw', weight_decay=0.01, rank=256, momentum=0.1, drop_first=True)",
    "ramen(capacity=750, topk=5, beta=5.0, lr=0.01, optimizer='signsgd')",
    "panda(method='zeroshot', beta=0.6, patch=32, share=10)",
    "lame(affinity='rbf', neighbours=5, steps=100)",
    "tent(lr=2.5e-4, optimizer='adam', weight_decay=0.0)",
    "eta(lr=2.5e-4, optimizer='adam', weight_decay=0.0, margin=0.4, diversity=0.05)",
    "mint(lr=7e-3, prior=10000.0)",
    "batclip(lr=1e-3, optimizer='adamw', weight_decay=0.01)",
    "bitta(lr=1e-3, optimizer='adamw', weight_decay=0.01)",
    "ecalp(k_text=3, k_image=8, gamma=10.0, alpha=1.0, iterations=3)",
    "tda(pos_alpha=2.0, pos_beta=5.0, pos_capacity=3, neg_alpha=0.117, neg_beta=1.0, neg_capacity=2, "
    "entropy=(0.2, 0.5), mask=(0.03, 1.0))",
]
PRESETS = {  # preset and batch size -> the arguments in which it differs from the defaults
    ("eata", "cifar10-c", 200): "diversity=0.4, fisher=1.0",
    ("eata", "cifar100-c", 200): "diversity=0.1, fisher=1.0",
    ("eata", "imagenet", 64): "optimizer='sgd', nesterov=False",
    ("deyo", "cifar10-c", 200): "optimizer='adam'",
    ("deyo", "imagenet", 64): "",
    ("deyo", "imagenet-port", 64): "lr=2.5e-4, nesterov=True",
    ("deyo", "single-images", 1): "lr=3.125e-5",
    ("deyo", "coloredmnist", 64): "lr=5e-3, plpd=0.5, margin=1.0, weight_margin=1.0",
    ("roid", "cifar10-c", 200): "",
    ("roid", "imagenet", 64): "optimizer='sgd', lr=2.5e-4",
    ("roid", "domainnet", 128): "optimizer='sgd', lr=2.5e-4",
    ("cmf", "imagenet", 64): "optimizer='sgd', lr=2.5e-4",
    ("memo", "resnet50", 1): "optimizer='sgd', lr=2.5e-4, weight_decay=0.0",
    ("memo", "resnet26", 1): "optimizer='sgd', lr=5e-3, weight_decay=0.0, views=32",
    ("tpt", "fine-grained", 1): "augmix=True",
    ("ctpt", "fine-grained", 1): "augmix=True",
    ("ctpt", "natural-shifts", 1): "dispersion=20.0, augmix=True",
    ("otpt", "fine-grained", 1): "augmix=True",
    ("otpt", "natural-shifts", 1): "orthogonality=2.0",
    ("dynaprompt", "official", 1): "prompts=12",
    ("dynaprompt", "fine-grained", 1): "lr=3e-3, augmix=True",
    ("dmn", "views", 1): "views=32",
    ("tps", "fine-grained", 1): "lr=1e-3, augmix=True",
    ("oga", "imagenet", 32): "",
    ("dota", "imagenet", 1): "eta=0.2, rho=0.005",
    ("dota", "imagenet-a", 1): "eta=0.5, rho=0.02, views=64, augmix=True",
    ("dota", "eurosat", 1): "eta=3.0, rho=0.05",
    ("dota", "food101", 1): "eta=0.1, rho=0.01, epsilon=4e-5",
    ("onzeta", "imagenet", 1): "",
    ("onzeta", "fine-grained", 1): "beta=0.4",
    ("onzeta", "caltech101", 1): "beta=0.4, alpha=0.0",
    ("watt", "cifar10-c", 128): "",
    ("watt", "imagenet", 128): "lr=1e-4",
    ("clipartt", "imagenet", 128): "",
    ("cliptta", "cifar10-c", 128): "",
    ("cliptta", "cifar100-c", 128): "shots=16, sample=128",
    ("cliptta", "imagenet", 256): "shots=16, sample=64, batch=False",
    ("infomax", "shot", 64): "optimizer='sgd', lr=1e-3, weight_decay=1e-3",
    ("infomax_both", "cifar10-c", 200): "prior='rank', strength='auto'",
    ("infomax_both", "cifar100-c", 200): "prior='rank', strength='auto', optimizer='adam', lr=5e-4, weight_decay=0.0",
    ("infomax_both", "cifar10-c-top", 200): "prior='top', strength=2.0",
    ("subtta", "cifar10-c", 200): "ent_scale=0.05",
    ("subtta", "cifar100-c", 200): "optimizer='adam', lr=5e-4, rank=64, momentum=0.5",
    ("subtta", "imagenet", 64): "lr=5e-4, momentum=0.5, ent_scale=3.0",
    ("ramen", "cifar10-c", 100): "capacity=7500, topk=50",
    ("ramen", "cifar100-c", 100): "",
    ("ramen", "imagenet", 50): "capacity=75, topk=1, beta=0.0",
    ("ramen", "domainnet", 100): "capacity=300, topk=10",
    ("panda", "tent", 64): "method='tent', beta=0.2, again=True",
    ("panda", "zero", 64): "method='zero(views=64)', beta=0.4",
    ("bca", "views", 1): "views=64",
    ("tent", "cifar10-c", 200): "",
    ("tent", "imagenet", 64): "optimizer='sgd'",
    ("eta", "cifar100-c", 200): "",
    ("eta", "imagenet", 64): "optimizer='sgd'",
    ("batclip", "cifar10-c", 200): "",
    ("batclip", "cifar100-c", 200): "lr=5e-4, optimizer='adam'",
    ("batclip", "imagenet", 64): "lr=5e-4",
    ("bitta", "cifar10-c", 200): "",
    ("bitta", "cifar100-c", 200): "lr=5e-4",
    ("bitta", "imagenet", 64): "lr=5e-4",
    ("mint", "imagenet", 64): "",
    ("ecalp", "imagenet", 1): "",
    ("tda", "imagenet", 1): "",
}


@pytest.fixture(scope="module")
def clip() -> lmr.ZeroShot:
    return lmr.load("photo").classifier(["cat", "ship", "dog"])


@pytest.mark.parametrize("spec", PUBLISHED)
def test_defaults_are_the_published_values(spec: str, clip: lmr.ZeroShot) -> None:
    plain = lmr.create(spec.partition("(")[0], clip, preset="default")
    assert lmr.create(spec, clip, preset="default").spec == plain.spec


@pytest.mark.parametrize(("name", "preset", "size"), PRESETS)
def test_presets_are_the_published_values(name: str, preset: str, size: int, clip: lmr.ZeroShot) -> None:
    spec = f"{name}({PRESETS[name, preset, size]})"
    assert lmr.create(name, clip, preset=preset).spec == lmr.create(spec, clip, preset="default").spec
    assert lmr.find_method(name).card.presets[preset].batch_size == size
