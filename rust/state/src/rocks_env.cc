// RocksDB's environment with background threads of ours: `rocks_threads.rs` says why.
//
// Owns: the C++ class, which nothing but C++ can derive. Does not own: the threads and their queues.

#include <rocksdb/env.h>

using ROCKSDB_NAMESPACE::CpuPriority;
using ROCKSDB_NAMESPACE::Env;
using ROCKSDB_NAMESPACE::EnvWrapper;
using ROCKSDB_NAMESPACE::Status;

extern "C" {
// In Rust.
void fastchangelog_threads_schedule(const void* threads, bool high, void (*run)(void*), void* argument, void* tag,
                                    void (*cancelled)(void*));
int fastchangelog_threads_unschedule(const void* threads, bool high, void* tag);
unsigned int fastchangelog_threads_waiting(const void* threads, bool high);
int fastchangelog_threads_count(bool high);
void fastchangelog_threads_end(const void* threads);

// As the C interface of RocksDB has it: what an `Env` of the Rust crate points to.
struct rocksdb_env_t {
  Env* rep;
  bool is_default;
};
}

namespace {

class OwnThreads final : public EnvWrapper {
 public:
  explicit OwnThreads(const void* threads) : EnvWrapper(Env::Default()), threads_(threads) {}
  ~OwnThreads() override { fastchangelog_threads_end(threads_); }

  void Schedule(void (*run)(void*), void* argument, Priority priority, void* tag,
                void (*cancelled)(void*)) override {
    fastchangelog_threads_schedule(threads_, priority == HIGH, run, argument, tag, cancelled);
  }
  int UnSchedule(void* tag, Priority priority) override {
    return fastchangelog_threads_unschedule(threads_, priority == HIGH, tag);
  }
  unsigned int GetThreadPoolQueueLen(Priority priority) const override {
    return fastchangelog_threads_waiting(threads_, priority == HIGH);
  }
  // Without threads of its own, RocksDB gives the jobs of a pool to another.
  int GetBackgroundThreads(Priority priority) override {
    return priority == LOW || priority == HIGH ? fastchangelog_threads_count(priority == HIGH) : 0;
  }

  // Their number does not change.
  void SetBackgroundThreads(int, Priority) override {}
  void IncBackgroundThreadsIfNeeded(int, Priority) override {}
  int ReserveThreads(int, Priority) override { return 0; }
  int ReleaseThreads(int, Priority) override { return 0; }
  void LowerThreadPoolIOPriority(Priority) override {}
  void LowerThreadPoolCPUPriority(Priority) override {}
  Status LowerThreadPoolCPUPriority(Priority, CpuPriority) override { return Status::OK(); }

 private:
  const void* threads_;
};

}  // namespace

extern "C" rocksdb_env_t* fastchangelog_env_with(const void* threads) {
  return new rocksdb_env_t{new OwnThreads(threads), false};
}
