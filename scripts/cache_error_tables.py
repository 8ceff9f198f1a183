"""The tables that scripts/readme-tables writes of `python -m flashcore.cache_error --json`: what quantised caches cost in accuracy."""

KINDS = {"normal": "normal numbers", "channels": "large channels", "sink": "a sink", "both": "both"}
SCALINGS = ("tensor", "head", "page", "token")


def figure(value):
    return f"{value:.2g}"


def name_of(line):
    return f"{line['cache']}, {line['scaling']}" if line["scaling"] else line["cache"]


def grouped(lines):
    """The lines of each cache, in the file's order."""
    found = {}
    for line in lines:
        found.setdefault(name_of(line), []).append(line)
    return found


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *("| " + " | ".join(row) + " |" for row in rows)])


def share(own, usual):
    """Of the 16-bit cache's bytes, over all models."""
    shares = sorted({round(100 * line["bytes_per_key"] / usual[line["model"]]) for line in own})
    return f"{shares[0]}%" if len(shares) == 1 else f"{shares[0]} to {shares[-1]}%"


def of_attention(lines):
    """A row for each cache: the largest of all models and lengths."""
    kinds = [kind for kind in KINDS if any(line["data"] == kind for line in lines)]
    usual = {line["model"]: line["bytes_per_key"] for line in lines if not line["scaling"]}
    rows = []
    for name, own in grouped(lines).items():
        largest = lambda part, what, kind=None, own=own: figure(max(line[part][what] for line in own if kind in (None, line["data"])))  # noqa: E731
        rows.append([name, share(own, usual), *(largest("end_to_end", "o", kind) for kind in kinds), largest("end_to_end", "worst_row"), largest("end_to_end", "lse"),
                     largest("kernel", "o"), largest("kernel", "lse")])  # fmt: skip
    return table(["cache, factors by", "memory", *(KINDS[kind] for kind in kinds), "worst row", "log-sum-exp", "kernel", "its log-sum-exp"], rows)


def of_models(lines):
    """A row for each model and length, of the hardest data that is in the file, with a column for each type's factors by key."""
    kind = next(kind for kind in reversed(KINDS) if any(line["data"] == kind for line in lines))
    by_model = {}
    for line in lines:
        if line["data"] == kind and line["scaling"] in (None, "token"):
            by_model.setdefault((line["model"], line["keys"]), {})[name_of(line)] = figure(line["end_to_end"]["o"])
    caches = list(next(iter(by_model.values())))
    rows = [[f"{model}, {keys:,} keys", *(found[cache] for cache in caches)] for (model, keys), found in by_model.items()]
    return table([f"data: {KINDS[kind]}", *caches], rows)


def of_decoder(lines):
    weights = list(dict.fromkeys(line["weights"] for line in lines))
    head = ["cache, factors by", *(f"{what}, {of}" for of in weights for what in ("logits", "same tokens"))]
    rows = []
    for name, own in grouped(lines).items():
        of = {line["weights"]: line for line in own}
        rows.append([name, *(cell for each in weights for cell in (figure(of[each]["logits"]), f"{of[each]['same_tokens']} of {of[each]['tokens']}"))])
    return table(head, rows)


def text(document, path):
    """All tables, and of what and when they are."""
    lines, decoder = document["lines"], document["decoder"]
    lengths = sorted({line["keys"] for line in lines})
    models = ", ".join(dict.fromkeys(line["model"] for line in lines))
    left_out = "".join(f"\nLeft out: {each['left_out']} ({each['why']})." for each in document["left_out"])
    parts = [of_attention(lines), f"The largest over {models} and caches of {' and '.join(f'{keys:,}' for keys in lengths)} keys.{left_out}", of_models(lines)]
    if decoder["lines"]:
        parts.append(of_decoder(decoder["lines"]))
    failed = f" {len(document['failed'])} of its gates failed: {document['failed'][0]}." if document["failed"] else ""
    origin = (f"{document['device']}, {document['dtype']}, pages of {document['page_size']} keys, seed {document['seed']}, of {document['measured_at'][:10]}, "
              f"source {document['source_hash'][:12]}.{failed} From `{path}`.")  # fmt: skip
    return "\n\n".join([*parts, origin]) + "\n"
