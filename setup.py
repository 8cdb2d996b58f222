import runpy
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
MODERN = "python_version >= '3.11'"  # fairseq 0.12.2 cannot be imported there; fairseq-fixed installs the same module
CLASSIC = "python_version < '3.11'"

ANALYZE = ["matplotlib>=3.7", "numba", "sacrebleu>=2", "tabulate"]

# The packages of commands and options that training and translation do without. The error that names a missing package
# names the extra: fairseq_ctxgates/extras.py.
COMMAND_EXTRAS = {
    "gate-labels": ["numba"],
    "relations": ["stanza", f"stanza<1.11; {CLASSIC}"],  # later ones ask for a later torch than 1.12
    "analyze": ANALYZE,
    "coherence": ["gensim>=4", *ANALYZE],
    "dask": ["distributed"],
    "moses": ["sacremoses"],
    "sentencepiece": ["sentencepiece"],
    "subword-nmt": ["subword-nmt"],
    "completion": ["shtab"],
}
ALL = sorted({requirement for requirements in COMMAND_EXTRAS.values() for requirement in requirements})

setup(
    name="fairseq-ctxgates",
    version=runpy.run_path(str(HERE / "fairseq_ctxgates" / "version.py"))["__version__"],
    description="A fairseq plugin: context gates, relations, preceding sentences and word smoothing for translation",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    author="The authors of fairseq-ctxgates",
    keywords="fairseq, machine translation, Transformer, context gates, document-level translation",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (8, 9, 10, 11, 12)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    python_requires=">=3.8",
    # Nothing: what training and translation need is what fairseq itself needs, so installing into an environment that
    # has a fairseq, of whatever version, changes no package there.
    install_requires=[],
    extras_require={
        # A new environment gets a fairseq for its Python. The versions we test with are those of tools/constraints-*.
        "fairseq": [
            f"fairseq-fixed~=0.12.3.1; {MODERN}",
            f"torch>=2.6; {MODERN}",
            f"fairseq==0.12.2; {CLASSIC}",
            f"numpy<2; {CLASSIC}",  # torch before 2.3 was built for NumPy 1
        ],
        **COMMAND_EXTRAS,
        "all": ALL,
        "benchmarks": [*ALL, "scipy"],
        "evidence": [*ALL, "pydantic>=2"],
        # pytest-xdist 3.8 keeps no groups of tests together with pytest 9.2.
        "test": [
            *ALL,
            "build",
            "pydantic>=2",
            "pytest>=7,<9",
            "pytest-xdist",
            "setuptools>=64",
            "tensorboardX",
            "wheel",
        ],
        "lint": ["mypy", "pre-commit", "ruff", "scipy"],
        "docs": ["furo", "myst-parser", "sphinx>=8"],
    },
    packages=find_packages(include=["fairseq_ctxgates", "fairseq_ctxgates.*"]),
    package_data={"fairseq_ctxgates": ["analysis/page.html", "config/**/*.yaml", "py.typed"]},
    py_modules=["ctxgates"],
    entry_points={"console_scripts": ["ctxgates = ctxgates:main"]},
    zip_safe=False,
)
