#pragma once
// The user's q, k and v as a Problem. Apart from `run` so that the checks between the tensors read in one place.

#include <string>
#include <vector>

#include "core/data.h"
#include "core/operands.h"
#include "core/tensor_file.h"

namespace flashcore::cli {

struct UserTensors {
  PlacedProblem problem;
  AttentionInputs inputs;
  bool had_batch = true;  // 3-D files: no batch axis, and none in the output
};

// q, k, v: file names as read_tensor takes them. Axes by `layout`: bhsd [batch, heads, seqlen, head_dim] or bshd
// [batch, seqlen, heads, head_dim]; the batch axis may be missing. Error kBadInput naming files and shapes where the
// three do not fit each other.
UserTensors read_user_tensors(const std::string& q, const std::string& k, const std::string& v, Layout layout);

// Slopes and sinks, fp32, into `user`: Problem::alibi and sink say which there are. "" is none. Error kBadInput naming
// file, shape and what is allowed.
void read_score_operands(const std::string& alibi, const std::string& sink, UserTensors& user);
// Their values, once the whole problem is known: kBadInput naming file and element for what no kernel computes with.
void check_score_operands(const std::string& alibi, const std::string& sink, const UserTensors& user);

// A score and a mask function, "" for none, and what they name: "slope=FILE,document=FILE". Sets the functions of
// user.problem and reads the tensors, cut to the part that the functions reach; the problem's other fields are known by
// then. Error kBadInput naming the flag, and of a tensor its file, shape and what is allowed.
void read_functions(const std::string& score, const std::string& mask, const std::vector<std::string>& tensors,
                    UserTensors& user);
// The files in such a list.
std::vector<std::string> function_files(const std::vector<std::string>& tensors);

// A dense tensor of the given values for the file: axes as the inputs had them.
FileTensor output_tensor(const HostTensor& o, Layout layout, bool with_batch);
FileTensor lse_tensor(const std::vector<float>& lse, const Problem& problem, bool with_batch);

}  // namespace flashcore::cli
