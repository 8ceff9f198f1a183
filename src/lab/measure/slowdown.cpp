#include "lab/measure/slowdown.h"

#include "core/error.h"

namespace flashcore {

LaunchWrapper repeat_launches(int permille) {
  FC_CHECK(permille >= 0);
  if (permille == 0) return {};
  return [permille](Launch launch) -> Launch {
    return [launch = std::move(launch), permille, owed = 0]() mutable {
      launch();
      owed += permille;
      for (; owed >= 1000; owed -= 1000) launch();
    };
  };
}

}  // namespace flashcore
