// fp8_codec TYPE OVERFLOW: fp32 numbers from stdin to codes on stdout, a byte each, for tests that compare the codec
// with one of another language. TYPE: e4m3 or e5m2; OVERFLOW: saturate or non_finite.
#include <cstdio>
#include <string_view>

#include "core/dtype.h"

int main(int argc, char** argv) {
  if (argc != 3) return 3;
  const std::string_view type = argv[1], overflow = argv[2];
  if ((type != "e4m3" && type != "e5m2") || (overflow != "saturate" && overflow != "non_finite")) return 3;
  const auto convert = type == "e4m3" ? flashcore::float_to_e4m3 : flashcore::float_to_e5m2;
  const auto past = overflow == "saturate" ? flashcore::Overflow::kSaturate : flashcore::Overflow::kNonFinite;
  float value = 0;
  while (std::fread(&value, sizeof value, 1, stdin) == 1) std::putchar(convert(value, past));
}
