"""CameraHealth: whether a camera gives a picture, the same one as in its own quiet time. Pure functions, no model.

What is no picture in any stream is judged image by image. The rest compares averages over the last images with what
the stream showed when it began, and follows it slowly. All of it is a few numbers and one view of 16 x 16 blocks,
which are stored in the record of the stream.
"""

from __future__ import annotations

import base64
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmr.images.picture import VIEW, Picture

QUIET = 64  # images from which the own values of a camera are learnt at first
MEMORY, MEMORY_SECONDS = 512, 3600.0  # over which they follow then: images and seconds, whichever is longer
SETTLED = 16  # images of the view before others are compared with it
RELEARN = 86_400.0  # seconds after which a camera that is blurred, moved or turned is taken as it is
SHORT = 1 / 16  # rate of the averages over the last images
BROKEN_IMAGES, OTHER_IMAGES = 3, 8  # in a row, from which a camera is in another state
FLAT, NOISE_ONLY = 0.5, 1.5  # spread of the view: below the first always, below the second if the image is noise
DARK, BRIGHT = 40.0, 215.0  # mean luminance of a black and of a white picture
NOISE = 0.9  # roughness of an image that is noise
COVERED_CONTRAST, COVERED_DETAIL = math.log(3), math.log(2)  # fall of contrast and of detail of a covered lens
BLURRED, BLURRED_SPREADS = 0.5, 2.0  # fall of the sharpness, at least, and in its own standard deviations
FIXED, MOVED, MOVED_SPREADS = 0.5, 0.35, 4.0  # match with the own view of a fixed camera; its fall for a moved one
STUCK_IMAGES, STUCK_SECONDS = 16, 60.0  # of the same frame, at least
SILENT_SECONDS, SILENT_SHARE = 60.0, 0.1  # without a frame; at most as a share of the time since the first one
TIMES = 4.0  # as long as ever in its usual time is unusual
FORGET = 0.998  # of the longest pause and of the longest run of equal frames, with each further one


class CameraState(enum.StrEnum):
    """What is wrong with a camera."""

    OK = "ok"
    BLACK = "black"
    WHITE = "white"
    ONE_COLOUR = "one colour"
    STATIC = "static"
    STUCK = "stuck"  # the same frame for long
    COVERED = "covered"
    BLURRED = "blurred"
    UPSIDE_DOWN = "upside down"
    MOVED = "moved"
    NO_FRAMES = "no frames"


NO_PICTURE = (CameraState.BLACK, CameraState.WHITE, CameraState.ONE_COLOUR, CameraState.STATIC)
NOT_TRUSTED = (*NO_PICTURE, CameraState.STUCK, CameraState.COVERED)  # nothing is learnt from these
_RELATIVE = (CameraState.BLURRED, CameraState.UPSIDE_DOWN, CameraState.MOVED)

CAMERA_MESSAGES = {
    CameraState.OK: "The camera gives its usual picture again.",
    CameraState.BLACK: "The picture is black.",
    CameraState.WHITE: "The picture is white.",
    CameraState.ONE_COLOUR: "The picture has one colour and nothing in it.",
    CameraState.STATIC: "The picture is noise.",
    CameraState.STUCK: "The camera sends the same frame again and again.",
    CameraState.COVERED: "The lens is covered: contrast and detail have gone.",
    CameraState.BLURRED: "The picture is less sharp than it was.",
    CameraState.UPSIDE_DOWN: "The picture is upside down.",
    CameraState.MOVED: "The camera shows another view, or something stands before it.",
    CameraState.NO_FRAMES: "No frame has come for much longer than usual.",
}


@dataclass(frozen=True)
class Usual:
    """A running mean and variance of one measure in the quiet time of a camera, and its mean over the last images."""

    mean: float = 0.0
    variance: float = 0.0
    now: float = 0.0

    def learn(self, value: float, rate: float) -> Usual:
        """Return it with one more image of the quiet time."""
        step = value - self.mean
        return Usual(self.mean + rate * step, (1 - rate) * (self.variance + rate * step * step), self.now)

    def see(self, value: float, rate: float) -> Usual:
        """Return it with one more image."""
        return Usual(self.mean, self.variance, self.now + rate * (value - self.now))

    @property
    def fall(self) -> float:
        """How far the last images are below the quiet time."""
        return self.mean - self.now

    @property
    def deviation(self) -> float:
        """The standard deviation in the quiet time."""
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class CameraHealth:
    """The state of a camera ``since`` a Unix time, and what it is judged by."""

    state: CameraState = CameraState.OK
    since: float = 0.0
    next: CameraState = CameraState.OK  # the state that the last images show
    shown: int = 0  # these images
    learnt: int = 0  # images of the quiet time
    due: float = 0.0  # share by which the view follows the images at its next update
    view: str = ""  # of the quiet time: 16 x 16 standardised blocks as int8, in base64
    sharpness: Usual = Usual()
    contrast: Usual = Usual()  # log of the spread
    detail: Usual = Usual()
    match: Usual = Usual()  # correlation with the view
    upright: Usual = Usual()  # the same, less that with the view upside down
    digest: int | None = None  # of the last frame
    same: int = 0  # frames like it, in a row
    same_since: float = 0.0
    longest_same: float = 0.0  # seconds
    began: float = 0.0
    last: float = 0.0  # time of the last frame
    longest_pause: float = 0.0  # seconds


def note_pictures(
    camera: CameraHealth, pictures: Sequence[Picture], time: float
) -> tuple[CameraHealth, list[CameraState]]:
    """Return the health after a request with images, at a Unix time, and what each of the images shows."""
    pause = max(0.0, time - camera.last) if camera.last else 0.0
    longest = max(pause, FORGET * camera.longest_pause)
    camera = replace(camera, began=camera.began or time, longest_pause=longest)
    if camera.state is CameraState.NO_FRAMES:
        camera = replace(camera, state=CameraState.OK, since=time)
    if camera.state in _RELATIVE and time - camera.since > RELEARN:
        camera = replace(camera, learnt=0, view="")
    shown = []
    for picture in pictures:
        camera = _count_same(camera, picture.digest, time)
        state = _judge_image(picture)
        if state is CameraState.OK and _is_stuck(camera, time):
            state = CameraState.STUCK
        elif state is CameraState.OK and camera.same > 1 and camera.learnt:
            state = camera.next  # an equal frame says nothing new of the rest
        elif state is CameraState.OK:
            camera, state = _compare(camera, picture, pause / len(pictures))
        camera = _follow(camera, state, time)
        shown.append(camera.state if state is CameraState.OK and camera.state is CameraState.COVERED else state)
    return replace(camera, last=time), shown


def is_silent(camera: CameraHealth, time: float) -> bool:
    """Return True if nothing has come until a Unix time, for much longer than usual, and that was not noted yet."""
    silence, before = time - camera.last, camera.last - camera.began
    long = max(SILENT_SECONDS, TIMES * camera.longest_pause)
    return camera.state is not CameraState.NO_FRAMES and long < silence and long < SILENT_SHARE * before


def note_silence(camera: CameraHealth, time: float) -> CameraHealth:
    """Return the health of a silent camera."""
    return replace(camera, state=CameraState.NO_FRAMES, since=time, next=CameraState.OK, shown=0)


def _count_same(camera: CameraHealth, digest: int, time: float) -> CameraHealth:
    if digest == camera.digest:
        return replace(camera, same=camera.same + 1)
    longest = max(camera.last - camera.same_since, FORGET * camera.longest_same) if camera.same else 0.0
    return replace(camera, digest=digest, same=1, same_since=time, longest_same=longest)


def _is_stuck(camera: CameraHealth, time: float) -> bool:
    long = max(STUCK_SECONDS, TIMES * camera.longest_same)
    return camera.same >= STUCK_IMAGES and time - camera.same_since > long


def _judge_image(picture: Picture) -> CameraState:
    """Return what is no picture, whatever the camera showed before."""
    if picture.spread < FLAT or (picture.spread < NOISE_ONLY and picture.roughness > NOISE):
        dark, bright = picture.level < DARK, picture.level > BRIGHT
        return CameraState.BLACK if dark else CameraState.WHITE if bright else CameraState.ONE_COLOUR
    return CameraState.STATIC if picture.roughness > NOISE else CameraState.OK


def _compare(camera: CameraHealth, picture: Picture, seconds: float) -> tuple[CameraHealth, CameraState]:
    """Compare an image with the quiet time, which it enters if nothing is unusual."""
    own = picture.view - picture.view.mean()
    own /= max(1e-6, float(own.std()))
    view = _unpack(camera.view)
    match = float((own * view).mean())
    values = {
        "sharpness": picture.sharpness,
        "contrast": math.log(picture.spread),
        "detail": picture.detail,
        "match": match,
        "upright": match - float((own * view[::-1, ::-1]).mean()),
    }
    learning = camera.learnt < QUIET
    changes: dict[str, Any] = {}
    for name, value in values.items():
        changes[name] = getattr(camera, name).see(value, SHORT)
    camera = replace(camera, **changes)
    state = CameraState.OK if learning else _judge_averages(camera)
    if state is not CameraState.OK or camera.state in _RELATIVE:
        return camera, state
    follow = min(1 / MEMORY, seconds / MEMORY_SECONDS)
    rate = 1 / (camera.learnt + 1) if learning else follow
    late = 1 / max(1, camera.learnt + 1 - SETTLED) if learning else follow
    for name, value in values.items():
        usual: Usual = getattr(camera, name).learn(value, late if name in ("match", "upright") else rate)
        changes[name] = replace(usual, now=usual.mean) if learning else usual
    due = camera.due + rate
    text = camera.view
    if learning or due >= SHORT:
        text, due = _pack(view + min(1.0, due) * (own - view)), 0.0
    return replace(camera, **changes, learnt=min(camera.learnt + 1, QUIET), due=due, view=text), state


def _judge_averages(camera: CameraHealth) -> CameraState:
    """Compare the averages over the last images with the quiet time; a state ends at two thirds of its limit."""

    def is_beyond(fall: float, limit: float, state: CameraState) -> bool:
        return fall > (limit / 1.5 if camera.state is state else limit)

    if is_beyond(camera.contrast.fall, COVERED_CONTRAST, CameraState.COVERED) and is_beyond(
        camera.detail.fall, COVERED_DETAIL, CameraState.COVERED
    ):
        return CameraState.COVERED
    fixed = camera.match.mean > FIXED
    if fixed and is_beyond(camera.upright.fall, camera.upright.mean, CameraState.UPSIDE_DOWN):
        return CameraState.UPSIDE_DOWN
    least = max(BLURRED, BLURRED_SPREADS * camera.sharpness.deviation)
    if is_beyond(camera.sharpness.fall, least, CameraState.BLURRED):
        return CameraState.BLURRED
    least = max(MOVED, MOVED_SPREADS * camera.match.deviation)
    if fixed and is_beyond(camera.match.fall, least, CameraState.MOVED):
        return CameraState.MOVED
    return CameraState.OK


def _follow(camera: CameraHealth, state: CameraState, time: float) -> CameraHealth:
    """Enter a state after some images in a row that show it."""
    if state is camera.state:
        return replace(camera, next=state, shown=0)
    shown = camera.shown + 1 if state is camera.next else 1
    quick = state in NO_PICTURE or state is CameraState.STUCK or camera.state in (*NO_PICTURE, CameraState.STUCK)
    if shown < (BROKEN_IMAGES if quick else OTHER_IMAGES):
        return replace(camera, next=state, shown=shown)
    return replace(camera, state=state, since=time, next=state, shown=0)


def _pack(view: NDArray[np.float32]) -> str:
    return base64.b64encode(np.clip(np.rint(32 * view), -127, 127).astype(np.int8).tobytes()).decode()


def _unpack(text: str) -> NDArray[np.float32]:
    if not text:
        return np.zeros((VIEW, VIEW), np.float32)
    blocks = np.frombuffer(base64.b64decode(text), np.int8).astype(np.float32).reshape(VIEW, VIEW)
    return blocks / np.float32(32)
