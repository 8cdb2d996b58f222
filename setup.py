from setuptools import find_packages, setup

MODERN = "python_version >= '3.11'"  # fairseq 0.12.2 cannot be imported there; fairseq-fixed installs the same module
CLASSIC = "python_version < '3.11'"

setup(
    name="fairseq-ctxgates",
    version="0.1.0",
    description="A fairseq plugin: context gates, relations, preceding sentences and word smoothing for translation",
    python_requires=">=3.8",
    install_requires=[
        # What an existing fairseq environment has satisfies these, so that installing never replaces its torch or
        # fairseq. The versions a new environment is given stand in tools/constraints-*.txt.
        f"fairseq-fixed~=0.12.3.1; {MODERN}",
        f"fairseq>=0.12.2; {CLASSIC}",
        f"torch>=2.6; {MODERN}",
        f"torch; {CLASSIC}",
        f"stanza; {MODERN}",
        f"stanza<1.11; {CLASSIC}",  # later ones ask for a later torch than 1.12
        f"numpy; {MODERN}",
        f"numpy<2; {CLASSIC}",  # torch before 2.3 was built for NumPy 1
        "matplotlib>=3.7",
        "numba",
        "sacrebleu",
        "scipy",
        "subword-nmt",
        "tabulate",
        "tqdm",
    ],
    extras_require={
        "test": ["distributed", "gensim", "pytest>=7", "pytest-xdist", "sacremoses", "sentencepiece", "tensorboardX"],
        "lint": ["mypy", "ruff"],
        "coherence": ["gensim>=4"],
        "dask": ["distributed"],
        "moses": ["sacremoses"],
        "sentencepiece": ["sentencepiece"],
    },
    packages=find_packages(include=["fairseq_ctxgates", "fairseq_ctxgates.*"]),
    package_data={"fairseq_ctxgates": ["config/**/*.yaml"]},
    py_modules=["ctxgates"],
    entry_points={"console_scripts": ["ctxgates = ctxgates:main"]},
    zip_safe=False,
)
