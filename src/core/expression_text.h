#pragma once
// How a part of an expression is written: in the canonical text, or alone.

#include <string>

#include "core/expression.h"

namespace flashcore {

std::string text_of(const Expression& expression, int part);

}  // namespace flashcore
