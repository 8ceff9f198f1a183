"""The source text of FlashInfer's variant with sinks; flashcore goes by the variant's name."""

attention_sink_decl = {"fa2": "struct AttentionSink;", "fa3": "struct AttentionSink;"}
