"""What setup.cfg has no words for: C, which an installation without a compiler goes without, and the README's links."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import Extension, setup

OPTIONS = {"optional": True, "extra_compile_args": ["-O3", "-ffp-contract=off"]}
RESIZE = ["pipeline/transforms/resize.h"]
PICTURES = (".svg", ".png", ".gif", ".jpg")
LINK = re.compile(r'(\]\(|\b(?:src|srcset|href)=")(?!https?:|mailto:|#)([^)"#\s]+)')

HERE = Path(__file__).resolve().parent
CONFIG = ConfigParser()
CONFIG.read(HERE / "setup.cfg")
URL = CONFIG["metadata"]["url"]
TAG = f"v{CONFIG['metadata']['version']}"


def with_absolute_links(text: str) -> str:
    """The README as a package index shows it: links and pictures lead to the files of this release."""

    def absolute(link: re.Match[str]) -> str:
        return f"{link[1]}{URL}/{'raw' if link[2].endswith(PICTURES) else 'blob'}/{TAG}/{link[2]}"

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(absolute, part) for part in parts)


setup(
    long_description=with_absolute_links((HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={
        "Documentation": f"{URL}/tree/{TAG}/docs",
        "Changelog": f"{URL}/blob/{TAG}/CHANGELOG.md",
        "Issues": f"{URL}/issues",
        "Source": f"{URL}/tree/{TAG}",
    },
    ext_modules=[
        Extension("ringfeed.sharding.compute._kernels", ["sharding/compute/kernels.c"], **OPTIONS),
        Extension(
            "ringfeed.pipeline.deliver._operations",
            ["pipeline/deliver/operations.c"],
            depends=RESIZE,
            libraries=["dl", "m"],
            **OPTIONS,
        ),
        Extension(
            "ringfeed.pipeline.transforms._images",
            ["pipeline/transforms/images.c"],
            depends=RESIZE,
            libraries=["dl", "m"],
            **OPTIONS,
        ),
        Extension("ringfeed.training.records._clock", ["training/records/clock.c"], libraries=["dl"], **OPTIONS),
    ],
)
