"""Writes a small made-up drive in the layout of the Aalto data: python make_drive.py FOLDER/invensense/1"""
import math
import pathlib
import sys


def main():
    prefix = pathlib.Path(sys.argv[1])
    prefix.parent.mkdir(parents=True, exist_ok=True)
    rows = range(2000)
    files = {
        "time": lambda i: [0.5 + i * 0.02],
        "loc": lambda i: [2 * math.cos(i / 150), 1.5 * math.sin(i / 90)],
        "mag": lambda i: [-20 + 5 * math.sin(i / 70), 3 * math.cos(i / 40), -45 + 6 * math.sin(i / 200)],
    }
    for kind, values in files.items():
        lines = (",".join(f"{value:.6g}" for value in values(i)) for i in rows)
        prefix.with_name(f"{prefix.name}-{kind}.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
