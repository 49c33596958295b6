"""An argument beyond what a method can use is refused by its name when the method is made."""

from __future__ import annotations

import pytest

import lmr
from view_problem import make_view_problem

WRONG = {
    "batclip": ["chunk=0", "chunk=-3", "lr=-1.0", "weight_decay=-0.1", "optimizer='x'"],
    "bca": ["tau1=-0.1", "tau2=-0.1", "c1=-1", "c2=-1", "views=0"],
    "bitta": ["high=1.1", "unlearn=-1.0", "alpha=-1e999", "beta=1e999", "high_mode='x'", "features='x'", "chunk=0"],
    "clipartt": ["top=0", "steps=0", "steps=1001", "lr=-1.0"],
    "cliptta": ["steps=0", "shots=0", "sample=-1", "lr=-1.0"],
    "cmf": ["alpha=1.1", "gamma=-0.1", "q=-1.0", "q=1e6"],
    "deyo": ["lr=-1.0", "margin=-0.1", "weight_margin=1e999", "plpd=1.1", "patches=0"],
    "dmn": ["alpha=-0.1", "beta=-0.1", "memory=-1", "keep=-1.0", "views=0"],
    "dota": ["epsilon=1.1", "sigma=0.0", "eta=-0.1", "rho=-0.1", "keep=0.0", "views=0"],
    "dynaprompt": ["prompts=0", "prompts=1001"],
    "eata": ["lr=-1.0", "fisher=-1.0", "fisher=1e999", "margin=-0.1", "diversity=-0.1"],
    "ecalp": ["k_text=0", "k_image=0", "iterations=0", "gamma=-1.0", "gamma=1e999", "alpha=0.0", "alpha=1.1"],
    "eta": ["lr=-1.0", "margin=-0.1", "margin=1e999", "diversity=-0.1", "diversity=1e999", "weight_decay=-1.0"],
    "infomax": ["strength=-1.0", "margin=-0.1", "alpha=-1.0", "power=1e999", "top=0"],
    "lame": ["affinity='near'", "neighbours=0", "steps=0"],
    "lmr_variants": ["share=0", "share=1.5"],
    "mint": ["lr=-1.0", "lr=1e999", "prior=0", "prior=-1.0", "prior=1e999"],
    "oga": ["shots=0", "tau=-0.1"],
    "onzeta": ["tau_text=0.0", "tau_image=-1.0", "cw=-0.1", "cr=-1.0", "alpha=-1.0", "beta=1.1", "length=0"],
    "ramen": ["lr=-1.0", "beta=-0.1", "capacity=0", "topk=0"],
    "roid": ["lr=-1.0", "momentum_source=1.1", "batch=0"],
    "rotta": ["lr=-1.0", "memory=0", "every=0", "nu=-0.1", "age=-1.0", "uncertainty=1e999"],
    "rtpt": ["neighbours=0", "temperature=0.0"],
    "sar": ["lr=-1.0", "rho=-0.1", "recovery=-0.1", "margin=1e999"],
    "stata": ["alpha=-0.1", "smooth=-0.1", "neighbours=-1", "rounds=0"],
    "steady": ["share=0", "share=1.5"],
    "subtta": ["lr=-1.0", "momentum=1.0", "momentum=-0.1", "rank=0", "ent_scale=-1.0"],
    "tda": ["pos_alpha=-1.0", "neg_alpha=1e999", "pos_beta=-0.5", "neg_capacity=-1", "entropy=(0.5, 0.2)", "mask=0.2"],
    "tent": ["lr=-1.0", "lr=1e999", "weight_decay=-0.1", "optimizer='lion'"],
    "tps": ["lr=-0.1", "weight_decay=-0.1", "keep=0.0", "steps=0", "views=0"],
    "tpt": ["keep=0.0", "keep=1.5", "chunk=0", "lr=-1.0"],
    "watt": ["inner=0", "rounds=0", "rounds=1001", "lr=-1.0", "mode='q'"],
}


@pytest.fixture(scope="module")
def clip() -> lmr.ZeroShot:
    return make_view_problem().classifier


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_get_a_sentence(name: str, clip: lmr.ZeroShot) -> None:
    for wrong in WRONG[name]:
        with pytest.raises(lmr.LmrError, match=wrong.partition("=")[0]):
            lmr.create(f"{name}({wrong})", clip)
