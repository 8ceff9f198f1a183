#pragma once
// Problems that nobody has tuned for: drawn by seed as the fuzzer draws them, at sizes that are worth timing. Beside
// the canonical ones they show what dispatch makes of a problem that no table has.

#include <cstdint>
#include <string>
#include <vector>

#include "core/suite.h"

namespace flashcore {

// `count` different problems, "drawn_1" and so on: head dims, groups, masks and types as the fuzzer draws them (16 and
// 8-bit types, head dims from 32 on, no own scale), lengths and batches by chance up to 64k keys. About half are
// prefill, the rest chunks of a prompt, decoding and cross-attention. Of `dtypes` only, if any are given. The same for
// a seed on every machine.
Suite draw_unseen(int count, std::uint64_t seed, const std::vector<DType>& dtypes = {});

// As YAML that load_suite reads back.
std::string print_suite(const Suite& suite, const std::string& comment);

}  // namespace flashcore
