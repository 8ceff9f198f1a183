#pragma once
// The user's tensors: .npy and .safetensors files, read and written whole.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/expression.h"

namespace flashcore {

// A dense C-order tensor as a file holds it.
struct FileTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

// "file.npy", "file.safetensors" (the file must hold one tensor) or "file.safetensors:name".
// npy: '<f4' and '<f2' (and '<V2'/'bfloat16' as written by ml_dtypes is bf16), C order, versions 1-3.
// safetensors: F32, F16, BF16. Anything else, a truncated file, a header that does not fit its data, a shape that does
// not match: Error kBadInput that names file, what was found and what is allowed.
FileTensor read_tensor(const std::string& where);
// The same of a file's bytes; `origin` is what complaints call it. An empty `name`: the one tensor.
FileTensor parse_npy(std::string_view file, const std::string& origin);
FileTensor parse_safetensors(std::string_view file, const std::string& origin, const std::string& name);

// A dense C-order tensor of numbers or conditions, as score and mask functions read them: fp32, int32, or a byte each.
struct FileElements {
  ExpressionType element = ExpressionType::kFloat;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};
// As read_tensor, of float32, int32, int64 (whose numbers must fit 32 bits) and bool.
FileElements read_elements(const std::string& where);
// By extension; written with write_file_atomically. bf16 needs .safetensors.
void write_tensor(const std::string& where, const FileTensor& tensor, const std::string& name);

}  // namespace flashcore
