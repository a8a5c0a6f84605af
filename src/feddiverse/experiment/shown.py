"""A figure that a notebook shows by itself, whether or not pyplot was imported."""

from io import BytesIO

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """matplotlib's, with what IPython asks for."""

    def _repr_png_(self) -> bytes:
        png = BytesIO()
        self.savefig(png, format="png", dpi=100)
        return png.getvalue()
