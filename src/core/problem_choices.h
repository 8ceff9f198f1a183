#pragma once
// How the fuzzer draws each field of a Problem, and to what a failing one is shrunk: columns of the table in
// core/problem_fields.cpp.

#include <vector>

#include "core/draws.h"
#include "core/problem.h"

namespace flashcore::problem_choices {

// A random value, given those drawn before.
void draw_batch(Problem& p, Draws& draws);
void draw_heads(Problem& p, Draws& draws);    // of q and of k
void draw_lengths(Problem& p, Draws& draws);  // of q and of k
void draw_head_dim(Problem& p, Draws& draws);
void draw_head_dim_v(Problem& p, Draws& draws);
void draw_dtype(Problem& p, Draws& draws);
void draw_o_dtype(Problem& p, Draws& draws);
void draw_scaling(Problem& p, Draws& draws);
void draw_causal(Problem& p, Draws& draws);
void draw_left(Problem& p, Draws& draws);
void draw_right(Problem& p, Draws& draws);
void draw_alignment(Problem& p, Draws& draws);
void draw_scale(Problem& p, Draws& draws);
void draw_softcap(Problem& p, Draws& draws);
void draw_alibi(Problem& p, Draws& draws);
void draw_sink(Problem& p, Draws& draws);
void draw_ragged(Problem& p, Draws& draws);
void draw_page_size(Problem& p, Draws& draws);  // and kv_dtype, with its scaling
void draw_v_layout(Problem& p, Draws& draws);
void draw_expressions(Problem& p, Draws& draws);
void draw_amax(Problem& p, Draws& draws);

// Simpler problems, boldest first. Some may be the problem itself.
std::vector<Problem> fewer_batches(const Problem& from);
std::vector<Problem> fewer_heads(const Problem& from);
std::vector<Problem> fewer_rows(const Problem& from);
std::vector<Problem> fewer_keys(const Problem& from);
std::vector<Problem> smaller_head_dim(const Problem& from);
std::vector<Problem> smaller_head_dim_v(const Problem& from);
std::vector<Problem> usual_o_dtype(const Problem& from);
std::vector<Problem> plain_cache(const Problem& from);
std::vector<Problem> usual_scaling(const Problem& from);
std::vector<Problem> simpler_causal(const Problem& from);
std::vector<Problem> narrower_left(const Problem& from);
std::vector<Problem> narrower_right(const Problem& from);
std::vector<Problem> plain_alignment(const Problem& from);
std::vector<Problem> plain_scale(const Problem& from);
std::vector<Problem> without_softcap(const Problem& from);
std::vector<Problem> simpler_alibi(const Problem& from);
std::vector<Problem> without_sink(const Problem& from);
std::vector<Problem> plainer_lengths(const Problem& from);
std::vector<Problem> plainer_pages(const Problem& from);
std::vector<Problem> usual_v_layout(const Problem& from);
std::vector<Problem> without_score_expression(const Problem& from);
std::vector<Problem> without_mask_expression(const Problem& from);
std::vector<Problem> without_amax(const Problem& from);

}  // namespace flashcore::problem_choices
