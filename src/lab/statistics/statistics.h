#pragma once
// All of lab/statistics/: pure functions on samples.

#include "core/random.h"
#include "lab/statistics/bootstrap.h"
#include "lab/statistics/distributions.h"
#include "lab/statistics/equivalence.h"
#include "lab/statistics/multiple_tests.h"
#include "lab/statistics/quantiles.h"
#include "lab/statistics/rank_tests.h"
#include "lab/statistics/verdict.h"
