"""Generation on the machines of a Ray cluster: `run-model --ray`, and a class for pipelines of your own.

    import ray
    from tightbeam.deploy.ray import Generate

    ray.data.read_parquet("articles").map_batches(
        Generate,
        fn_constructor_kwargs={"bundle": "/models/bart-int8", "column": "article", "num_beams": 4},
        batch_format="pyarrow", batch_size=256, num_cpus=4, concurrency=8,
    ).write_parquet("summaries")

This package imports the library ray only when something runs.
"""

from tightbeam.deploy.ray.generate import Generate

__all__ = ["Generate"]
