#include "api/csr.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <span>

#include "api/artifact_cache.h"
#include "api/fork_gate.h"
#include "api/operand_checks.h"
#include "core/error.h"
#include "kernels/csr/csr.h"

namespace flashcore::api {
namespace {

csr::CsrParams read(const Context& context, const fc_csr_operands& given) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  OperandChecks checks(context);
  csr::CsrParams params{};
  params.batch = checks.whole("batch", given.batch, 1, kMost - 1);
  params.page_size = checks.whole("page_size", given.page_size, 1);
  params.entries = checks.whole("entries", given.entries, 0);
  params.max_pages = checks.whole("max_pages", given.max_pages, 0);
  params.row_ctas = std::max(1, static_cast<int>((given.max_pages + csr::kThreads - 1) / csr::kThreads));
  if (params.batch > kMost / params.row_ctas)
    throw_bad_input("a block table of {} rows and {} columns is more than a launch writes; give a smaller max_pages",
                    params.batch, params.max_pages);
  params.table_stride = given.table_stride == 0 ? params.max_pages : given.table_stride;
  checks.within("table_stride", params.table_stride, params.max_pages, OperandChecks::kMostReach / params.batch);
  const auto int32s = [&](const char* name, const std::int32_t* at, std::int64_t count, bool written) {
    checks.array(name, at, count, sizeof(std::int32_t), written);
  };
  int32s("indptr", params.indptr = given.indptr, params.batch + 1, false);
  int32s("indices", params.indices = given.indices, params.entries, false);
  int32s("last_page_len", params.last_page_len = given.last_page_len, params.batch, false);
  int32s("seqused_kv", params.seqused_kv = given.seqused_kv, params.batch, true);
  const std::int64_t reach = (params.batch - 1) * params.table_stride + params.max_pages;
  int32s("block_table", params.block_table = given.block_table, params.max_pages == 0 ? 0 : reach, true);
  checks.check_apart();
  return params;
}

}  // namespace

Csr::Csr(std::shared_ptr<Context> context) : context_(std::move(context)) {
  if (context_->on_cpu()) return;
  const std::lock_guard lock(context_->planning());
  module_ = context_->load(find_or_compile(csr::source_of(), context_->info().limits));
}

void Csr::launch(const fc_csr_operands* given, void* stream) const {
  const csr::CsrParams params =
      read(*context_, whole_struct(given, fc_csr_operands FC_CSR_OPERANDS_INIT, "fc_csr_operands"));
  if (context_->on_cpu()) {
    if (stream) throw_bad_input("a stream was given, and the CPU has none; give null");
    return csr::run_on_cpu(params);
  }
  std::optional<InsideLibrary> inside;
  std::unique_lock<std::mutex> turn;
  if (std::mutex* mutex = context_->turn()) {
    inside.emplace();  // or a child forked meanwhile could never take its turn
    turn = std::unique_lock(*mutex);
  }
  context_->device().launch_on(stream, *module_, csr::launch_of(params), std::as_bytes(std::span(&params, 1)));
}

}  // namespace flashcore::api
