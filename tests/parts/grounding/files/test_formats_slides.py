"""Slides: what stands on them, from top to bottom."""

import pptx
from pptx.util import Inches

from cadenza.parts.grounding.files.formats.read import read_document
from tests import made_files as made


def read(show: pptx.presentation.Presentation) -> dict[str, str]:
    return {section.label: section.text for section in read_document("a.pptx", "", made.saved(show))}


def add(shapes: pptx.shapes.shapetree.SlideShapes, text: str, left: float, top: float) -> None:
    shapes.add_textbox(Inches(left), Inches(top), Inches(2), Inches(1)).text_frame.text = text


def test_shapes_are_read_by_their_position() -> None:
    """The title is first, then the shapes from top to bottom and from left to right, groups as a whole."""
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[6])
    add(slide.shapes, "bottom", 1, 6)
    group = slide.shapes.add_group_shape()
    add(group.shapes, "second of the group", 1, 4)
    add(group.shapes, "first of the group", 5, 3)
    add(slide.shapes, "right", 5, 1.9)
    add(slide.shapes, "left", 1, 2)
    show.slides.add_slide(show.slide_layouts[5]).shapes.title.text = "Title"
    add(show.slides[1].shapes, "above the title", 1, 0)
    show.slides[1].shapes[0].top, show.slides[1].shapes[0].left = Inches(3), Inches(1)
    assert read(show) == {
        "slide 1": "left\n\nright\n\nfirst of the group\n\nsecond of the group\n\nbottom",
        "slide 2": "# Title\n\nabove the title",
    }


def test_hidden_slides_and_levels() -> None:
    """A hidden slide says so and keeps its number, and points below others are indented."""
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "Plan"
    frame = slide.placeholders[1].text_frame
    frame.text = "Sow"
    for text in ("in March", "in rows"):
        point = frame.add_paragraph()
        point.text, point.level = text, 1
    slide.element.set("show", "0")
    assert read(show) == {"slide 1 (hidden)": "# Plan\n\nSow\n\n  - in March\n  - in rows"}
