// .npy and .safetensors.
#include "core/tensor_file.h"
#include "target.h"

namespace flashcore::fuzz {
namespace {

__extension__ using Wide = unsigned __int128;  // products of extents overflow 64 bits

void judge(const FileTensor& tensor, std::size_t file_bytes) {
  FLASHCORE_REQUIRE(tensor.data.size() <= file_bytes);
  Wide bytes = size_of(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) {
    FLASHCORE_REQUIRE(extent >= 0);
    if (bytes < (static_cast<Wide>(1) << 64)) bytes *= static_cast<Wide>(extent);
  }
  for (const std::int64_t extent : tensor.shape)
    if (extent == 0) bytes = 0;
  FLASHCORE_REQUIRE(bytes == tensor.data.size());
}

const Target kNpy("npy", [](std::string_view input) { judge(parse_npy(input, "a.npy"), input.size()); });

const Target kSafetensors("safetensors", [](std::string_view input) {
  judge(parse_safetensors(input, "a.safetensors", input.size() % 2 == 0 ? "q" : ""), input.size());
});

}  // namespace
}  // namespace flashcore::fuzz
