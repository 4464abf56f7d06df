"""Draws the decoding figures of the planner pages: `python docs/planners/figures.py` writes one SVG per planner.

Each row is an action sequence after one operation: 16 tokens x1, y1, .. x8, y8, the last pair the goal, or 24 tokens
x1, y1, h1, .. x8, y8, h8.
"""

from pathlib import Path

CELL, GAP, LEFT, TOP, TEXT = 22, 3, 196, 78, 584
COLOURS = {
    "mask": ("#e4e7eb", "masked"),
    "goal": ("#f2b134", "goal"),
    "new": ("#2f6fde", "written in this call"),
    "kept": ("#a9c6f5", "written before"),
    "edit": ("#2e9e5b", "replaced by AutoEdit"),
    "refined": ("#2e9e5b", "replaced by the refinement expert"),
    "anchor": ("#d64545", "token pair of the search (anchor)"),
}
SHORT = {"-": "mask", "G": "goal", "n": "new", "k": "kept", "e": "edit", "r": "refined", "a": "anchor"}
Row = tuple[str, str, str]  # name, a letter of SHORT per token, what happens

REFLECTDRIVE2: tuple[Row, ...] = (
    ("goals", "----------------", "prefill_goal: goal posterior from the fully masked sequence"),
    ("", "--------------GG", "non-maximum suppression, goal values: up to six goals"),
    ("draft", "nnnnnnnnnnnnnnGG", "one round writes all tokens: one plan per goal"),
    ("selection", "kkkkkkkkkkkkkkGG", "one plan is selected; the others become candidates"),
    ("edit round 1", "kkkkkekkkkeekkGG", "improbable tokens are replaced, at most 5"),
    ("edit round 2, 3", "kkkkkkkkkkkekkGG", "until a round changes nothing"),
    ("repair, search", "kkkkkkaakkkkkkGG", "if unsafe: best pairs near the first unsafe waypoint"),
    ("repair, redraft", "kkkknnaannnnnnGG", "one call writes the rest; the results are scored"),
)
REFLECTDRIVE: tuple[Row, ...] = (
    ("goals", "----------------", "prefill_goal: goal posterior from the fully masked sequence"),
    ("", "--------------GG", "non-maximum suppression: three goals"),
    ("draft", "nnnnnnnnnnnnnnGG", "one round writes all tokens with the goal fixed (inpainting)"),
    ("selection", "kkkkkkkkkkkkkkGG", "the best plan by safety, then by the driving score"),
    ("repair, search", "kkkkkkaakkkkkkGG", "if unsafe: best pairs near the first unsafe waypoint"),
    ("repair, redraft", "kkkknnaannnnnnGG", "one call writes the rest; the results are scored"),
)
DRIVEFINE: tuple[Row, ...] = (
    ("prefill", "------------------------", "the prompt is encoded; there is no goal"),
    ("draft round 1", "---------------------nn-", "2 tokens of the last waypoint are written"),
    ("draft round 2", "nnnn-n---------------kkn", "its third and the 5 most confident (cosine schedule)"),
    ("draft round 3", "kkkknknnnnnn---------kkk", "7 more"),
    ("draft round 4", "kkkkkkkkkkkknnnnnnnnnkkk", "the last 9"),
    ("refinement", "kkkrkkkrkkkkkrkkkkrkkkrk", "one pass of the expert: every token is predicted again"),
    ("choice", "kkkkkkkkkkkkkkkkkkkkkkkk", "of six such plans, five of them sampled, if they can be scored"),
    ("repair, search", "kkkkkkkkkaakkkkkkkkkkkkk", "if unsafe: best pairs near the first unsafe waypoint"),
    ("repair, redraft", "kkkkkknnnaannnnnnnnnnnnn", "one call writes the rest; the results are scored"),
)


def figure(title: str, rows: tuple[Row, ...], axes: str = "xy") -> str:
    """The SVG of a planner's rows; `axes` are the letters of the tokens of a waypoint."""
    tokens = 8 * len(axes)
    width, height = LEFT + tokens * (CELL + GAP) + TEXT - 150, TOP + len(rows) * (CELL + 9) + 52
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="14">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="18" font-weight="bold" fill="#1c2733">{title}</text>',
    ]
    for k in range(tokens):
        x, token = LEFT + k * (CELL + GAP) + CELL / 2, f"{axes[k % len(axes)]}{k // len(axes) + 1}"
        out.append(f'<text x="{x}" y="{TOP - 12}" text-anchor="middle" fill="#5b6875">{token}</text>')
    for place, (name, cells, what) in enumerate(rows):
        y = TOP + place * (CELL + 9)
        assert len(cells) == tokens, (name, len(cells))
        out.append(f'<text x="16" y="{y + 16}" fill="#1c2733">{name}</text>')
        for k, letter in enumerate(cells):
            colour, x = COLOURS[SHORT[letter]][0], LEFT + k * (CELL + GAP)
            out.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="3" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + tokens * (CELL + GAP) + 12}" y="{y + 16}" fill="#1c2733">{what}</text>')
    x, y = 16, TOP + len(rows) * (CELL + 9) + 14
    used = {SHORT[letter] for _, cells, _ in rows for letter in cells}
    for key, (colour, meaning) in COLOURS.items():
        if key in used:
            out.append(f'<rect x="{x}" y="{y}" width="14" height="14" rx="3" fill="{colour}"/>')
            out.append(f'<text x="{x + 20}" y="{y + 12}" fill="#5b6875">{meaning}</text>')
            x += 42 + 8 * len(meaning)
    return "\n".join([*out, "</svg>", ""])


FIGURES = {
    "reflectdrive2.svg": figure("ReflectDrive-2: one full step", REFLECTDRIVE2),
    "reflectdrive.svg": figure("ReflectDrive: one step", REFLECTDRIVE),
    "drivefine.svg": figure("DriveFine: one step", DRIVEFINE, "xyh"),
}

if __name__ == "__main__":
    for name, content in FIGURES.items():
        (Path(__file__).parent / name).write_text(content, encoding="utf-8")
