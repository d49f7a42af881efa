"""The report's figures: PNGs that runs have left, made smaller."""

from io import BytesIO
from pathlib import Path

from utils.report.paper import Paper, RunFigure
from utils.report.results import Missing, Results
from utils.runs.files import write_atomically

from PIL import Image

BROKEN_IMAGE = (OSError, SyntaxError)  # what PIL raises if a PNG is cut off or is no PNG


def file_name(figure: RunFigure) -> str:
    """Return the name of a figure among those of all runs."""
    return f"{figure.kind}_{figure.name}.png"


def read_images(paper: Paper, results: Results) -> dict[str, bytes]:
    """Return the compressed PNGs of the figures that exist and can be read, by `file_name`."""
    images = {}
    for figure in paper.figures:
        try:
            path = results.runs[figure.kind].path(f"{figure.name}.png")
            images[file_name(figure)] = _compressed(path)
        except (Missing, *BROKEN_IMAGE):
            continue
    return images


def _compressed(path: Path) -> bytes:
    """Return a PNG in 256 colours: a third of the size, and no difference to the eye."""
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        buffer = BytesIO()
        small.save(buffer, format="png", optimize=True)
        return buffer.getvalue()


def write_images(images: dict[str, bytes], directory: Path) -> None:
    """Write the images, and delete those that an earlier report has left."""
    directory.mkdir(exist_ok=True)
    for name, data in images.items():
        write_atomically(directory / name, lambda file, data=data: file.write(data))
    for path in directory.glob("*.png"):
        if path.name not in images:
            path.unlink()
