"""The live page and the description of the API, from files of this package; nothing comes from anywhere else."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import FileResponse

from lmr.service.page import PAGE_FOLDER

router = APIRouter(include_in_schema=False)
_FRESH = {"Cache-Control": "no-cache"}  # asked for again each time, and sent only if it changed


@router.get("/")
async def get_page() -> FileResponse:
    """The live page."""
    return FileResponse(PAGE_FOLDER / "index.html", headers=_FRESH)


@router.get("/docs")
async def get_docs() -> FileResponse:
    """The description of the API, drawn from /openapi.json."""
    return FileResponse(PAGE_FOLDER / "docs.html", headers=_FRESH)
