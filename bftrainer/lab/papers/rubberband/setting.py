"""The experiments of section 6: their stages, the cloud, and what had to be assumed."""

from __future__ import annotations

from bftrainer.study.plan.cloud import Billing, Cloud
from bftrainer.study.plan.experiment import Experiment, sha_stages

GPUS_PER_INSTANCE = 4  # p3.8xlarge
PRICE_H = 12.24  # the static plan of 40 min gives it to 0.3%
LATENCY_S = 15.0  # of initialisation and of scaling, section 6.3.1
MINUTE_S = 60.0

RESNET101: Experiment = sha_stages(32, 1, 50, 3)  # Tables 2 and 3
TABLE_3 = (32, 20, 12, 8)  # GPUs of the stages
DEADLINES_MIN = (20, 30, 40)


def study(trials: int, most: int = 508) -> Experiment:
    """Return the simulated study of so many trials: SHA(n, 4, R, 2), section 6.1."""
    return sha_stages(trials, 4, most, 2)


ASSUMED = {
    "SHA(n, r, R, eta)": "floor(n / eta^k) trials train r eta^k iterations more in stage k, the "
    "last stage up to R: the ranges of Table 3",
    "price": f"{PRICE_H:g} $ per hour of p3.8xlarge, which the static plan of 40 min gives to 0.3%",
    "billing": "an instance costs from when it is there, scaling is waited for and not billed, "
    "no minimum charge",
    "share": "trials share GPUs equally and rounded down; if there are fewer, one trial after the "
    "other trains on each",
    "ResNet-101": "the profile is not published: A is smooth and nearest to static 30 and 40 and "
    "RubberBand 20 of Table 2, B to five rows, C lies between; D was fitted to all rows with the "
    "planners in the loop; E is the linear program's for the rows of A, with Table 3's plan as "
    "RubberBand's: that the exact plan under E has Table 3's instances shows that a profile goes "
    "with that plan, and is no prediction",
    "ResNet-50": "not published beyond Table 1 (4 GPUs): the ring of Table 1 with 10 Gbit/s "
    "between instances; or 6% lost with each doubling, on and on; or the same up to some GPUs and "
    "no gain beyond",
    "deadlines": "20 min in Fig. 9, as in Fig. 11; several from 10 to 30 min in Fig. 10",
    "stragglers": "normal numbers, at least 5% of their mean; drawn for each iteration, or once "
    "for each trial of a stage; both plans of Fig. 9 are made without stragglers, with sigma 10 s "
    "they take 33 to 55 min instead of 20",
    "Algorithm 2": "literal: a step goes to the next allocation that trials can share, and a late "
    "step ends the search; repaired: it goes on until an instance is free, and passes over late "
    "steps",
}


def cloud(
    *,
    init_s: float = 0.0,
    scale_s: float = 0.0,
    billing: Billing = Billing.INSTANCE,
    data_price: float = 0.0,
) -> Cloud:
    """Return p3.8xlarge."""
    return Cloud(
        gpus_per_instance=GPUS_PER_INSTANCE,
        price_h=PRICE_H,
        init_s=init_s,
        scale_s=scale_s,
        billing=billing,
        data_price=data_price,
    )


WARM_POOL = cloud(init_s=LATENCY_S, scale_s=LATENCY_S)
