// Attention over a paged KV pool, read in place through the plan's index arrays.
//
// One task is (row, KV head, tile of queries, range of keys). The query heads that share a KV head
// are handled together, so each key and value is read once for all of them. A task walks its keys
// in chunks and keeps a running softmax in float32; where a row's keys are split over several
// tasks, the parts are merged by their log-sum-exp. No sequence is ever copied out of the pool.
//
// Only tokens below seq_len are read: slots that were never written may hold anything, even NaN.
// No torch headers: this compiles in seconds with any C++17 compiler that has GCC's vector
// extensions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "tiles.h"

namespace {

constexpr int MAX_TILE = 64;         // queries x group in one task, unless the group is larger
constexpr int64_t MIN_SPLIT = 256;   // keys; a shorter range is not worth a merge
constexpr int TASKS_PER_THREAD = 4;  // enough for an even finish

struct Args {
  const void* q;
  void* out;
  const void* k;
  const void* v;
  const int32_t* qo_indptr;
  const int32_t* kv_indptr;
  const int32_t* kv_indices;
  const int32_t* seq_lens;
  int64_t q_stride_token, q_stride_head;      // elements
  int64_t out_stride_token, out_stride_head;  // elements
  int64_t kv_stride_block, kv_stride_token, kv_stride_head;
  int32_t num_rows, num_qo_heads, num_kv_heads, head_dim, block_size;
  int32_t window;      // keys to the left of a query that it sees; -1: all
  int32_t max_qo_len;  // rows with more queries are left to the caller
  int32_t q_is_bf16, kv_is_bf16, num_threads;
  float scale, soft_cap;
};

struct Task {
  int32_t row, head, first, count;  // queries [first, first + count) of the row
  int32_t lo, hi;                   // keys
  int32_t part;                     // index of its partial result; -1: the task is the whole
  int32_t num_parts;                // of its tile; set on the first part only
};

// What one thread needs for one task.
struct Scratch {
  std::vector<float> q, o, s, kt, m, l;
  const void* keys[CHUNK];
  const void* values[CHUNK];

  Scratch(int tile, int head_dim, int padded)
      : q(size_t(tile) * padded),
        o(size_t(tile) * padded),
        s(size_t(tile) * CHUNK),
        kt(size_t(head_dim) * CHUNK),
        m(tile),
        l(tile) {}
};

inline float query_at(const Args& a, int64_t index) {
  return a.q_is_bf16 ? widen(static_cast<const bf16*>(a.q)[index])
                     : static_cast<const float*>(a.q)[index];
}

void fetch_queries(const Args& a, const Task& t, int group, int padded, float* q) {
  const int64_t token = a.qo_indptr[t.row] + t.first;
  for (int i = 0; i < t.count; i++)
    for (int g = 0; g < group; g++) {
      const int64_t base =
          (token + i) * a.q_stride_token + int64_t(t.head * group + g) * a.q_stride_head;
      float* row = q + size_t(i * group + g) * padded;
      for (int d = 0; d < a.head_dim; d++) row[d] = query_at(a, base + d) * a.scale;
    }
}

template <class T>
void point_at(const Args& a, const Task& t, int from, int n, Scratch& s) {
  const int32_t* blocks = a.kv_indices + a.kv_indptr[t.row];
  const T* k = static_cast<const T*>(a.k) + t.head * a.kv_stride_head;
  const T* v = static_cast<const T*>(a.v) + t.head * a.kv_stride_head;
  int block = from / a.block_size, offset = from % a.block_size;
  for (int c = 0; c < n; c++) {
    const int64_t at = blocks[block] * a.kv_stride_block + offset * a.kv_stride_token;
    s.keys[c] = k + at;
    s.values[c] = v + at;
    if (++offset == a.block_size) {
      offset = 0;
      block++;
    }
  }
}

template <class T>
void run_task(const Args& a, const Task& t, int group, int padded, Scratch& s) {
  const int rows = t.count * group;
  const int position = a.seq_lens[t.row] - (a.qo_indptr[t.row + 1] - a.qo_indptr[t.row]) + t.first;
  fetch_queries(a, t, group, padded, s.q.data());
  std::fill(s.o.begin(), s.o.begin() + size_t(rows) * padded, 0.f);
  std::fill(s.m.begin(), s.m.begin() + rows, -INFINITY);
  std::fill(s.l.begin(), s.l.begin() + rows, 0.f);
  for (int from = t.lo; from < t.hi; from += CHUNK) {
    const int n = std::min(CHUNK, t.hi - from);
    point_at<T>(a, t, from, n, s);
    if (rows <= 4)
      scores_by_key<T>(s.q.data(), padded, rows, s.keys, n, a.head_dim, s.s.data());
    else
      scores_by_tile<T>(s.q.data(), padded, rows, s.keys, n, a.head_dim, s.kt.data(), s.s.data());
    for (int r = 0; r < rows; r++) {
      const int at = position + r / group;
      const int end = std::min(n, at + 1 - from);
      const int begin = a.window < 0 ? 0 : std::max(0, at - a.window - from);
      float* scores = s.s.data() + size_t(r) * CHUNK;
      if (begin >= end) {
        std::fill(scores, scores + CHUNK, 0.f);
        continue;
      }
      if (a.soft_cap > 0) cap_scores(scores, a.soft_cap);
      soften(scores, begin, end, &s.m[r], &s.l[r], s.o.data() + size_t(r) * padded, padded);
    }
    mix<T>(s.s.data(), rows, s.values, n, a.head_dim, s.o.data(), padded);
  }
}

void write_row(const Args& a, int64_t token, int head, const float* o, float factor) {
  const int64_t base = token * a.out_stride_token + int64_t(head) * a.out_stride_head;
  for (int d = 0; d < a.head_dim; d++) {
    const float x = o[d] * factor;
    if (a.q_is_bf16)
      narrow(x, static_cast<bf16*>(a.out) + base + d);
    else
      narrow(x, static_cast<float*>(a.out) + base + d);
  }
}

void write_out(const Args& a, const Task& t, int group, int padded, const Scratch& s) {
  const int64_t token = a.qo_indptr[t.row] + t.first;
  for (int r = 0; r < t.count * group; r++)
    write_row(a, token + r / group, t.head * group + r % group, s.o.data() + size_t(r) * padded,
              1.f / s.l[r]);
}

// One partial result: for each query m, l, o[padded].
void keep_part(const Task& t, int group, int padded, const Scratch& s, float* part) {
  for (int r = 0; r < t.count * group; r++, part += padded + 2) {
    part[0] = s.m[r];
    part[1] = s.l[r];
    std::memcpy(part + 2, s.o.data() + size_t(r) * padded, padded * sizeof(float));
  }
}

void merge_parts(const Args& a, const Task& t, int group, int padded, size_t part_size,
                 const float* parts, float* o) {
  const int64_t token = a.qo_indptr[t.row] + t.first;
  for (int r = 0; r < t.count * group; r++) {
    float highest = -INFINITY, total = 0;
    const float* base = parts + t.part * part_size + size_t(r) * (padded + 2);
    for (int i = 0; i < t.num_parts; i++) highest = std::max(highest, base[i * part_size]);
    std::fill(o, o + padded, 0.f);
    for (int i = 0; i < t.num_parts; i++) {
      const float* part = base + i * part_size;
      // A part in which this query sees no key has m = -inf and must weigh nothing.
      const float weight = part[1] == 0 ? 0.f : std::exp(part[0] - highest);
      total += weight * part[1];
      for (int d = 0; d < a.head_dim; d++) o[d] += weight * part[2 + d];
    }
    write_row(a, token + r / group, t.head * group + r % group, o, 1.f / total);
  }
}

struct Tile {
  int32_t row, first, count, lo, hi;
};

std::vector<Tile> cut_tiles(const Args& a, int queries_a_tile) {
  std::vector<Tile> tiles;
  for (int row = 0; row < a.num_rows; row++) {
    const int qo_len = a.qo_indptr[row + 1] - a.qo_indptr[row];
    if (qo_len > a.max_qo_len) continue;
    for (int first = 0; first < qo_len; first += queries_a_tile) {
      const int count = std::min(queries_a_tile, qo_len - first);
      const int position = a.seq_lens[row] - qo_len + first;
      const int lo = a.window < 0 ? 0 : std::max(0, position - a.window);
      tiles.push_back({row, first, count, lo, position + count});
    }
  }
  return tiles;
}

std::vector<Task> cut_tasks(const Args& a, const std::vector<Tile>& tiles, int* num_parts) {
  int64_t work = 0;
  for (const Tile& t : tiles) work += int64_t(t.hi - t.lo) * a.num_kv_heads;
  const int64_t share = work / (int64_t(a.num_threads) * TASKS_PER_THREAD) + 1;
  const int64_t limit = std::max(MIN_SPLIT, (share + CHUNK - 1) / CHUNK * CHUNK);
  std::vector<Task> tasks;
  for (const Tile& t : tiles) {
    const int parts = int((t.hi - t.lo + limit - 1) / limit);
    for (int head = 0; head < a.num_kv_heads; head++) {
      if (parts == 1) {
        tasks.push_back({t.row, head, t.first, t.count, t.lo, t.hi, -1, 0});
        continue;
      }
      for (int i = 0; i < parts; i++) {
        const int lo = int(t.lo + i * limit);
        const int hi = int(std::min<int64_t>(t.hi, lo + limit));
        tasks.push_back({t.row, head, t.first, t.count, lo, hi, *num_parts, i ? 0 : parts});
        ++*num_parts;
      }
    }
  }
  return tasks;
}

void run(const Args& a) {
  const int group = a.num_qo_heads / a.num_kv_heads;
  const int padded = (a.head_dim + W - 1) / W * W;
  const int queries_a_tile = std::max(1, MAX_TILE / group);
  const std::vector<Tile> tiles = cut_tiles(a, queries_a_tile);
  int longest = 1, num_parts = 0;
  for (const Tile& t : tiles) longest = std::max(longest, int(t.count));
  const std::vector<Task> tasks = cut_tasks(a, tiles, &num_parts);
  const int num_tasks = int(tasks.size());
  const int threads = std::max(1, std::min(a.num_threads, num_tasks));
  const size_t part_size = size_t(longest) * group * (padded + 2);
  std::vector<float> parts(num_parts * part_size);
  std::vector<Scratch> scratch;
  scratch.reserve(threads);
  for (int i = 0; i < threads; i++) scratch.emplace_back(longest * group, a.head_dim, padded);
  int next_scratch = 0;

#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    int mine;
#pragma omp atomic capture
    mine = next_scratch++;
    Scratch& s = scratch[mine];
#pragma omp for schedule(dynamic)
    for (int i = 0; i < num_tasks; i++) {
      const Task& t = tasks[i];
      if (a.kv_is_bf16)
        run_task<bf16>(a, t, group, padded, s);
      else
        run_task<float>(a, t, group, padded, s);
      if (t.part < 0)
        write_out(a, t, group, padded, s);
      else
        keep_part(t, group, padded, s, parts.data() + t.part * part_size);
    }
#pragma omp for schedule(dynamic)
    for (int i = 0; i < num_tasks; i++)
      if (tasks[i].num_parts > 0)
        merge_parts(a, tasks[i], group, padded, part_size, parts.data(), s.o.data());
  }
}

}  // namespace

extern "C" {

// Size of the argument struct, so that the caller can check its own picture of it.
int64_t radixcache_args_size() { return sizeof(Args); }

// 0: done. 1: out of memory.
int32_t radixcache_paged_attention(const void* args) {
  try {
    run(*static_cast<const Args*>(args));
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

}  // extern "C"
