#include "lab/record/store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <sqlite3.h>

#include <chrono>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/scratch_folder.h"
#include "lab/record/json_io.h"
#include "lab/record/store_error.h"
#include "lab/record/wrong_on_purpose.h"

namespace flashcore {
namespace {

constexpr int kSchemaVersion = 1;
// SQLite's own place for "whose file is this": "FLSH".
constexpr int kApplicationId = 0x464C5348;
// A writer holds the lock for one INSERT and one fsync; this covers a disk that stalls. No signal ends the wait.
constexpr int kBusyTimeoutMs = 8000;

constexpr const char* kTables = R"(
CREATE TABLE trials (
  id INTEGER PRIMARY KEY,
  run TEXT NOT NULL,
  created_at TEXT NOT NULL,
  phase TEXT NOT NULL,
  suite TEXT NOT NULL,
  problem TEXT NOT NULL,
  device TEXT NOT NULL,
  family TEXT NOT NULL,
  config TEXT NOT NULL,
  code_hash TEXT,
  source_hash TEXT NOT NULL,
  ended TEXT NOT NULL,
  p50_us REAL,
  json TEXT NOT NULL
);
CREATE INDEX trials_by_run ON trials(run);
CREATE INDEX trials_by_candidate ON trials(problem, device, source_hash, family, config);
CREATE INDEX trials_by_phase ON trials(phase);
)";

int pragma_int(SQLite::Database& db, const char* name) { return db.execAndGet(std::string("PRAGMA ") + name).getInt(); }

// Switching to WAL needs the file for itself for a moment, and SQLite does not call the busy handler for that lock
// when it would risk a deadlock: two processes that create a store at once meet here.
void enter_wal(SQLite::Database& db) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kBusyTimeoutMs);
  for (;;) {
    try {
      db.exec("PRAGMA journal_mode = WAL");
      return;
    } catch (const SQLite::Exception& e) {
      if ((e.getErrorCode() & 0xff) != SQLITE_BUSY || std::chrono::steady_clock::now() > deadline) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

void refuse_foreign(int application, int version, const std::filesystem::path& path) {
  if (application != kApplicationId)
    throw_bad_input("'{}' is an SQLite database, but not a flashcore store; give --store another file", path.string());
  if (version > kSchemaVersion)
    throw_bad_input(
        "store '{}' has schema version {}, this flashcore reads up to {}; it was written by a newer version: update "
        "flashcore, or give --store another file",
        path.string(), version, kSchemaVersion);
}

bool is_blank(SQLite::Database& db, int application, int version) {
  return application == 0 && version == 0 && db.execAndGet("SELECT count(*) FROM sqlite_master").getInt() == 0;
}

// `application_id` and `user_version` are read inside the transaction that would create the schema, so that of two
// creators one creates and the other finds it made.
void check_or_create_schema(SQLite::Database& db, const std::filesystem::path& path) {
  SQLite::Transaction transaction(db, SQLite::TransactionBehavior::IMMEDIATE);
  const int application = pragma_int(db, "application_id");
  const int version = pragma_int(db, "user_version");
  if (is_blank(db, application, version)) {
    db.exec(kTables);
    db.exec(fmt::format("PRAGMA application_id = {}", kApplicationId));
    db.exec(fmt::format("PRAGMA user_version = {}", kSchemaVersion));
    transaction.commit();
    return;
  }
  refuse_foreign(application, version, path);
}

void make_folder_of(const std::filesystem::path& path) {
  const auto folder = path.parent_path();
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw_environment("cannot create the folder '{}' of the store: {}; give --store a path that can be written",
                      folder.string(), error.message());
}

}  // namespace

void throw_store_error(const std::filesystem::path& path, const std::string& doing, const SQLite::Exception& e) {
  const std::string file = path.string();
  switch (e.getErrorCode() & 0xff) {
    case SQLITE_FULL:
      throw_environment(
          "cannot {} the store '{}': the disk is full; free some space and run again: what was stored before is intact",
          doing, file);
    case SQLITE_IOERR:
      throw_environment(
          "cannot {} the store '{}': {} (disk full, a file size limit, or a failing disk); what was stored before is "
          "intact",
          doing, file, e.getErrorStr());
    case SQLITE_NOTADB:
      throw_bad_input("'{}' is not a flashcore store (not an SQLite database); give --store another file", file);
    case SQLITE_CORRUPT:
      throw_bad_input("store '{}' is damaged: {}; move it away, or recover it with `sqlite3 {} .recover`", file,
                      e.what(), file);
    case SQLITE_BUSY:
      throw_environment(
          "cannot {} the store '{}': another process has kept it locked for {} s; end that process and run again",
          doing, file, kBusyTimeoutMs / 1000);
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
      throw_environment("cannot {} the store '{}': {}; give --store a path in a folder that can be written", doing,
                        file, e.what());
    default: throw_environment("cannot {} the store '{}': {}", doing, file, e.what());
  }
}

// A copy of a store, gone with the object.
class StoreCopy {
 public:
  explicit StoreCopy(const std::filesystem::path& path) {
    std::error_code error;
    for (const char* part : {"", "-wal"}) {
      const std::filesystem::path from = path.string() + part;
      if (!std::filesystem::exists(from, error)) continue;
      std::filesystem::copy_file(from, file().string() + part, error);
      std::error_code ignored;
      std::filesystem::permissions(file().string() + part, std::filesystem::perms::owner_all, ignored);
      if (error)
        throw_environment("cannot read the store '{}': {} when copying {}", path.string(), error.message(),
                          from.string());
    }
  }
  std::filesystem::path file() const { return folder_.path() / "trials.db"; }

 private:
  ScratchFolder folder_;
};

namespace {

bool is_no_access(const SQLite::Exception& e) {
  const int code = e.getErrorCode() & 0xff;
  return code == SQLITE_CANTOPEN || code == SQLITE_READONLY || code == SQLITE_PERM;
}

}  // namespace

struct Store::Impl {
  std::filesystem::path path;
  std::unique_ptr<StoreCopy> copy;
  std::unique_ptr<SQLite::Database> db;
  bool blank = false;  // to read, but nobody has written yet
  std::string fault;   // of append_or_note

  // Reading a store in WAL mode needs a -shm file beside it, which SQLite cannot make in a folder that is read-only.
  // "immutable" would do without, and would not see what is still in the -wal file: so a copy is read.
  void open_to_read() {
    try {
      db = std::make_unique<SQLite::Database>(path, SQLite::OPEN_READONLY, kBusyTimeoutMs);
      look_at_schema();
    } catch (const SQLite::Exception& e) {
      if (!is_no_access(e)) throw;
      db.reset();
      copy = std::make_unique<StoreCopy>(path);
      db = std::make_unique<SQLite::Database>(copy->file(), SQLite::OPEN_READWRITE, kBusyTimeoutMs);
      look_at_schema();
    }
  }

  void look_at_schema() {
    const int application = pragma_int(*db, "application_id"), version = pragma_int(*db, "user_version");
    blank = is_blank(*db, application, version);
    if (!blank) refuse_foreign(application, version, path);
  }
};

Store::Store(const std::filesystem::path& path, Access access) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  if (std::filesystem::is_directory(path))
    throw_bad_input("store '{}' is a folder; give --store a file, e.g. {}", path.string(),
                    (path / "trials.db").string());
  if (access == Access::kWrite) make_folder_of(path);
  try {
    if (access == Access::kRead) {
      impl_->open_to_read();
      return;
    }
    impl_->db = std::make_unique<SQLite::Database>(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, kBusyTimeoutMs);
    // The foreign or newer file is recognised before anything, the journal mode included, is changed in it.
    check_or_create_schema(*impl_->db, path);
    enter_wal(*impl_->db);
    impl_->db->exec("PRAGMA synchronous = FULL");
  } catch (const SQLite::Exception& e) {
    throw_store_error(path, "open", e);
  }
}

Store::~Store() = default;

std::filesystem::path Store::path() const { return impl_->path; }

std::int64_t Store::append(const Trial& trial) {
  if (is_wrong_on_purpose(trial.family)) throw_bad_input("{} {}", trial.candidate(), kWrongIsNoCandidate);
  try {
    // One statement is one transaction: it is there whole or not at all.
    SQLite::Statement insert(
        *impl_->db,
        "INSERT INTO trials (run, created_at, phase, suite, problem, device, family, config, code_hash, "
        "source_hash, ended, p50_us, json) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)");
    int at = 0;
    insert.bind(++at, trial.run);
    insert.bind(++at, trial.created_at);
    insert.bind(++at, std::string(to_string(trial.phase)));
    insert.bind(++at, trial.suite);
    insert.bind(++at, trial.problem.id());
    insert.bind(++at, trial.device.key);
    insert.bind(++at, trial.family);
    insert.bind(++at, trial.config);
    if (trial.artifact) insert.bind(++at, trial.artifact->code_hash);
    else insert.bind(++at);
    insert.bind(++at, trial.source_hash);
    insert.bind(++at, std::string(to_string(trial.ended)));
    if (trial.timing) insert.bind(++at, trial.timing->p50_us);
    else insert.bind(++at);
    insert.bind(++at, dump_line(trial));
    insert.exec();
    return impl_->db->getLastInsertRowid();
  } catch (const SQLite::Exception& e) {
    throw_store_error(impl_->path, "write to", e);
  }
}

std::int64_t Store::append_or_note(const Trial& trial) {
  if (is_wrong_on_purpose(trial.family)) throw_bad_input("{} {}", trial.candidate(), kWrongIsNoCandidate);
  // Each attempt at a store that is locked takes as long as the first.
  if (!impl_->fault.empty()) return 0;
  try {
    return append(trial);
  } catch (const Error& e) {
    impl_->fault = e.what();
    return 0;
  }
}

const std::string& Store::fault() const { return impl_->fault; }

std::vector<Trial> Store::query(const TrialQuery& query, std::vector<std::string>* damaged) const {
  if (impl_->blank) return {};
  std::string sql = "SELECT id, json FROM trials";
  std::vector<std::string> values;
  const auto where = [&](const char* column, const std::optional<std::string>& value) {
    if (!value) return;
    sql += std::string(values.empty() ? " WHERE " : " AND ") + column + " = ?";
    values.push_back(*value);
  };
  where("run", query.run);
  where("problem", query.problem_id);
  where("device", query.device_key);
  where("family", query.family);
  if (query.phase) where("phase", std::string(to_string(*query.phase)));
  sql += " ORDER BY id";
  try {
    SQLite::Statement select(*impl_->db, sql);
    for (std::size_t i = 0; i < values.size(); ++i) select.bind(static_cast<int>(i) + 1, values[i]);
    std::vector<Trial> trials;
    while (select.executeStep()) {
      const std::int64_t id = select.getColumn(0).getInt64();
      const std::string text = select.getColumn(1).getString();
      try {
        Trial trial = parse_trial(text);
        if (is_wrong_on_purpose(trial.family)) throw_bad_input("{} {}", trial.candidate(), kWrongIsNoCandidate);
        trials.push_back(std::move(trial));
        trials.back().id = id;
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& e) {
        if (damaged == nullptr)
          throw_bad_input(
              "store '{}' holds a damaged trial, {}: {}; delete it (sqlite3 {} 'DELETE FROM trials WHERE id = "
              "{}'), or give --store another file",
              impl_->path.string(), id, e.what(), impl_->path.string(), id);
        damaged->push_back(fmt::format("trial {} of the store '{}' ({})", id, impl_->path.string(), e.what()));
      }
    }
    return trials;
  } catch (const SQLite::Exception& e) {
    throw_store_error(impl_->path, "read", e);
  }
}

}  // namespace flashcore
