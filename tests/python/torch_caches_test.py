"""transformers' static caches, chunks of prompts and continuous batching on flashcore: what "eager" computes, without a note."""

import contextlib
import logging
import unittest
import warnings
from unittest import mock

import torch
import torch_support  # noqa: F401

import flashcore
from flashcore.torch import counters

try:
    import transformers
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionMemoryHandler

    import flashcore.transformers as integration
except ImportError:
    transformers = None

LENGTH, NEW = 21, 6


def config(kind, **more):
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 vocab_size=100, max_position_embeddings=256, pad_token_id=0)  # fmt: skip
    return kind(**{**sizes, **more})


def made(of):
    """With weights that choose a token clearly."""
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(of, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1)
    return model


def models():
    yield "llama", config(transformers.LlamaConfig)
    yield "mistral", config(transformers.MistralConfig, sliding_window=8)
    yield "gemma2", config(transformers.Gemma2Config, head_dim=16, sliding_window=8, attn_logit_softcapping=20.0)
    yield "gemma3", config(transformers.Gemma3TextConfig, head_dim=16, sliding_window=8, query_pre_attn_scalar=16, layer_types=["sliding_attention", "full_attention"])


@unittest.skipUnless(transformers, "transformers does not import")
class CachesTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.ids = torch.randint(1, 100, (3, LENGTH))

    @contextlib.contextmanager
    def nothing_passed_on(self):
        before = counters()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", flashcore.Note)
            yield
        after = counters()
        self.assertGreater(after["computed"], before["computed"])
        self.assertEqual(sum(after["passed_on"].values()), sum(before["passed_on"].values()), after["passed_on"])

    def masks_seen(self, model, run):
        """(what run returns, how many masks [rows, keys] were made)."""
        real, given = integration.sdpa_mask, []
        with mock.patch.object(integration, "sdpa_mask", lambda *a, **o: given.append(real(*a, **o)) or given[-1]):
            return run(), sum(mask is not None for mask in given)

    def test_generate_with_static_caches(self):
        padded = torch.ones_like(self.ids)
        padded[0, :5], padded[1, :13] = 0, 0
        for name, of in models():
            for mask in (torch.ones_like(self.ids), padded):
                with self.subTest(model=name, padded=mask is padded):
                    model = made(of)
                    run = lambda model=model, mask=mask: model.generate(  # noqa: E731
                        self.ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, cache_implementation="static", disable_compile=True)
                    wanted = run()
                    model.set_attn_implementation("flashcore")
                    with self.nothing_passed_on():
                        ours, masks = self.masks_seen(model, run)
                    self.assertTrue(torch.equal(ours, wanted))
                    if name == "llama":  # a window's static cache is as short as the window
                        self.assertEqual(masks, 0)

    def test_prompts_in_chunks(self):
        """The rows of a chunk follow those of the one before, in a cache that grows and in one that is longer from the start."""
        for kind in ("dynamic", "static"):
            for padding in (0, 2):
                with self.subTest(cache=kind, padding=padding):
                    model = made(config(transformers.LlamaConfig))
                    seen = torch.ones_like(self.ids)
                    seen[0, :padding] = 0

                    def run(model=model, seen=seen, kind=kind):
                        cache = transformers.DynamicCache() if kind == "dynamic" else transformers.StaticCache(config=model.config, max_cache_len=40)
                        positions = (seen.cumsum(1) - 1).clamp(0)
                        logits = [model(self.ids[:, a:b], past_key_values=cache, attention_mask=seen[:, :b], position_ids=positions[:, a:b]).logits
                                  for a, b in ((0, 3), (3, 9), (9, 20), (20, 21))]  # fmt: skip
                        return torch.cat(logits, 1)

                    with torch.no_grad():
                        wanted = run()
                    model.set_attn_implementation("flashcore")
                    with self.nothing_passed_on():
                        ours, masks = self.masks_seen(model, run)
                    counted = seen.bool()
                    torch.testing.assert_close(ours[counted], wanted[counted], atol=1e-4, rtol=1e-4)
                    self.assertTrue(torch.isfinite(ours).all())
                    self.assertEqual(masks, 0)

    def test_what_is_no_prefix_of_a_cache_has_a_mask(self):
        """Keys that count with gaps between them."""
        model = made(config(transformers.LlamaConfig))
        seen = torch.ones_like(self.ids)
        seen[1, 6:9] = 0

        def run():
            cache = transformers.StaticCache(config=model.config, max_cache_len=40)
            return model(self.ids, past_key_values=cache, attention_mask=seen).logits

        with torch.no_grad():
            wanted = run()
            model.set_attn_implementation("flashcore")
            ours, masks = self.masks_seen(model, run)
        torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
        self.assertGreater(masks, 0)

    def test_continuous_batching(self):
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
        transformers.logging.set_verbosity_error()
        prompts = [torch.randint(1, 100, (n,)).tolist() for n in (5, 17, 30, 2)]
        generation = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
        # It asks psutil for the memory of a CPU.
        memory = mock.patch.object(PagedAttentionMemoryHandler, "get_available_memory", staticmethod(lambda *given, **named: 1 << 30))
        # transformers 5.5 reads a window's keys from one too early on: with a window each implementation differs from generate().
        for name, of, wanted in (("llama", config(transformers.LlamaConfig), "generate"), ("mistral", config(transformers.MistralConfig, sliding_window=8), "paged|eager")):
            for tokens in (64, 16):  # 16: prompts in chunks
                batching = ContinuousBatchingConfig(block_size=16, num_blocks=32, max_batch_tokens=tokens)
                with self.subTest(model=name, tokens=tokens), memory:
                    model = made(of)

                    def run(implementation, model=model, batching=batching):
                        model.set_attn_implementation(implementation)
                        made = model.generate_batch(prompts, generation_config=generation, continuous_batching_config=batching, progress_bar=False)
                        return [made[key].generated_tokens for key in sorted(made)]

                    if wanted == "generate":
                        alone = [model.generate(torch.tensor([p]), attention_mask=torch.ones(1, len(p)).long(), generation_config=generation) for p in prompts]
                        theirs = [tokens[0, len(p) :].tolist() for tokens, p in zip(alone, prompts)]
                    else:
                        theirs = run(wanted)
                    with self.nothing_passed_on():
                        ours = run("paged|flashcore")
                    self.assertEqual(ours, theirs)

    def test_a_block_table_is_refused(self):
        with self.assertRaisesRegex(flashcore.Error, "block_table is given; 'paged.flashcore' takes read_index"):
            integration.paged_attention_forward(None, None, None, None, block_table=torch.zeros(1))


if __name__ == "__main__":
    unittest.main()
