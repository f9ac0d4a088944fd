"""Generation on the machines of a Ray cluster: `run-model --ray`, and a class for a pipeline of one's own.

    import ray
    from tightbeam.deploy.ray import Generate

    ray.data.read_parquet("articles").map_batches(
        Generate,
        fn_constructor_kwargs={"bundle": "/models/bart-int8", "column": "article", "num_beams": 4},
        batch_format="pyarrow", batch_size=256, num_cpus=4, concurrency=8,
    ).write_parquet("summaries")

The library ray is imported by what runs, not by this package.
"""

from tightbeam.deploy.ray.generate import Generate

__all__ = ["Generate"]
