"""The tables that scripts/readme-tables writes of surveys: `python -m flashcore.quantize_bench` and `python -m flashcore.block_mask_bench`."""

from cache_error_tables import table


def of_quantising(document):
    """A row for each way, with the rate and the share of the copy's on each shape."""
    shapes = list(dict.fromkeys(row["shape"] for row in document["rows"]))
    found = {}
    for row in document["rows"]:
        cell = f"{row['gbps']['flashcore'] / 1e3:.2f} ({row['share_of_copy']:.2f})" if "gbps" in row else "–"
        found.setdefault(row["way"], {})[row["shape"]] = cell
    copies = [row["gbps"]["copy"] for row in document["rows"] if "gbps" in row]
    rows = [[way, *(cells.get(shape, "–") for shape in shapes)] for way, cells in found.items()]
    return table(["way", *(f"`{shape}`" for shape in shapes)], rows) + (
        f"\n\nTB/s of {document['dtype']} q, k and v, and in brackets the share of what a copy of as many bytes moved in the same rounds, "
        f"{min(copies) / 1e3:.2f} to {max(copies) / 1e3:.2f} TB/s.")  # fmt: skip


def of_block_masks(document):
    rows = []
    for row in document["rows"]:
        p = row["problem"]
        shape = f"b{p['batch']}_h{p['heads']}_hk{p['heads_kv']}_s{p['rows']}_d{p['dim']}"
        mask = f"documents of {p['document']} rows, causal" if p["document"] else "boolean, causal pattern"
        times = [f"{row['us'][party]:.1f}" for party in ("own lists", "block mask")] if "us" in row else ["–", "–"]
        rows.append([f"{mask}<br>`{shape}`", *times, f"{row['speed_up']:.3f}" if "speed_up" in row else row.get("left_out", "–")])  # a CPU has no ratio
    return table(["mask, bf16", "own lists, µs", "shared, µs", "speed-up"], rows)


TABLES = {"flashcore.quantize_bench/1": of_quantising, "flashcore.block_mask_bench/1": of_block_masks}


def text(document, path):
    """The table, and of what and when it is."""
    origin = (f"{document['device']}, medians of {document['rounds']} rounds, one process, no gates, of {document['measured_at'][:10]}, "
              f"source {document['source_hash'][:12]}. From `{path}`.")  # fmt: skip
    return f"{TABLES[document['schema']](document)}\n\n{origin}\n"
