// Attention over a paged KV pool, read in place through the plan's index arrays.
//
// One task is (row, KV head, tile of queries, range of keys). The query heads that share a KV head
// are handled together, so each key and value is read once for all of them. A task walks its keys
// in chunks and keeps a running softmax in float32; where a row's keys are split over several
// tasks, the parts are merged by their log-sum-exp. No sequence is ever copied out of the pool.
//
// Only tokens below seq_len are read: slots that were never written may hold anything, even NaN.
// No torch headers: this file compiles in seconds, alone, with any C++17 compiler that has GCC's
// vector extensions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;    // floats in a vector
constexpr int ROWS = 4;  // queries in a register tile
#elif defined(__AVX__)
constexpr int W = 8;
constexpr int ROWS = 2;
#else
constexpr int W = 4;
constexpr int ROWS = 2;
#endif
constexpr int NV = 4;                // vectors in a register tile
constexpr int CHUNK = 64;            // keys a running-softmax update
constexpr int MAX_TILE = 64;         // queries x group in one task, unless the group is larger
constexpr int64_t MIN_SPLIT = 256;   // keys; a shorter range is not worth a merge
constexpr int TASKS_PER_THREAD = 4;  // enough for an even finish

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));

struct bf16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

inline void narrow(float x, float* out) { *out = x; }
inline void narrow(float x, bf16* out) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(x)) {
    out->bits = 0x7fc0;
    return;
  }
  out->bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // round to nearest even
}

inline vf load(const float* p) {
  vf out;
  std::memcpy(&out, p, sizeof out);
  return out;
}
inline vf load(const bf16* p) {
  vh half;
  std::memcpy(&half, p, sizeof half);
  return (vf)(__builtin_convertvector(half, vu) << 16);
}
inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
inline vf splat(float x) { return x - vf{}; }

inline float sum(vf x) {
  float out = 0;
  for (int i = 0; i < W; i++) out += x[i];
  return out;
}
inline float largest(vf x) {
  float out = x[0];
  for (int i = 1; i < W; i++) out = x[i] > out ? x[i] : out;
  return out;
}

// e^x for x <= 88, within 2 ulp; 0 below -87; NaN stays NaN.
inline vf exp_vec(vf x) {
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to a whole number
  const vf shifted = x * 1.44269504f + magic;
  const vf n = shifted - magic;
  const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const vi exponent = ((vi)shifted - 0x4b400000 + 127) << 23;
  return x < -87.f ? vf{} : p * (vf)exponent;
}

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

// s[r][c] = q[r] . k, for R queries and one key.
template <int R, class T>
inline void dot_key(const float* q, int ldq, const T* k, int dim, float* s) {
  vf acc[R] = {};
  int d = 0;
  for (; d + W <= dim; d += W) {
    const vf key = load(k + d);
    for (int r = 0; r < R; r++) acc[r] += load(q + r * ldq + d) * key;
  }
  for (int r = 0; r < R; r++) {
    float total = sum(acc[r]);
    for (int e = d; e < dim; e++) total += q[r * ldq + e] * widen(k[e]);
    s[r * CHUNK] = total;
  }
}

template <class T>
void scores_by_key(const float* q, int ldq, int rows, const void* const* keys, int n, int dim,
                   float* s) {
  for (int c = 0; c < n; c++) {
    const T* k = static_cast<const T*>(keys[c]);
    int r = 0;
    for (; r + 4 <= rows; r += 4) dot_key<4>(q + r * ldq, ldq, k, dim, s + r * CHUNK + c);
    if (rows - r == 3) dot_key<3>(q + r * ldq, ldq, k, dim, s + r * CHUNK + c);
    if (rows - r == 2) dot_key<2>(q + r * ldq, ldq, k, dim, s + r * CHUNK + c);
    if (rows - r == 1) dot_key<1>(q + r * ldq, ldq, k, dim, s + r * CHUNK + c);
  }
}

// s[R][NV * W] = q[R][dim] * kt[dim][NV * W]
template <int R>
inline void scores_tile(const float* q, int ldq, const float* kt, int dim, float* s) {
  vf acc[R][NV] = {};
  for (int d = 0; d < dim; d++) {
    vf key[NV];
    for (int j = 0; j < NV; j++) key[j] = load(kt + d * CHUNK + j * W);
    for (int r = 0; r < R; r++)
      for (int j = 0; j < NV; j++) acc[r][j] += q[r * ldq + d] * key[j];
  }
  for (int r = 0; r < R; r++)
    for (int j = 0; j < NV; j++) store(s + r * CHUNK + j * W, acc[r][j]);
}

template <class T>
void scores_by_tile(const float* q, int ldq, int rows, const void* const* keys, int n, int dim,
                    float* kt, float* s) {
  for (int c = 0; c < n; c++) {
    const T* k = static_cast<const T*>(keys[c]);
    for (int d = 0; d < dim; d++) kt[d * CHUNK + c] = widen(k[d]);
  }
  // Columns past n hold an earlier chunk's numbers; the softmax masks them.
  for (int c = 0; c < CHUNK; c += NV * W) {
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS)
      scores_tile<ROWS>(q + r * ldq, ldq, kt + c, dim, s + r * CHUNK + c);
    for (; r < rows; r++) scores_tile<1>(q + r * ldq, ldq, kt + c, dim, s + r * CHUNK + c);
  }
}

// o[R][width] += p[R][n] * values[n][width], for width = V * W numbers from column d.
template <int R, int V, class T>
inline void mix_tile(const float* p, const void* const* values, int n, int d, float* o, int ldo) {
  vf acc[R][V];
  for (int r = 0; r < R; r++)
    for (int j = 0; j < V; j++) acc[r][j] = load(o + r * ldo + d + j * W);
  for (int c = 0; c < n; c++) {
    const T* row = static_cast<const T*>(values[c]) + d;
    vf value[V];
    for (int j = 0; j < V; j++) value[j] = load(row + j * W);
    for (int r = 0; r < R; r++)
      for (int j = 0; j < V; j++) acc[r][j] += p[r * CHUNK + c] * value[j];
  }
  for (int r = 0; r < R; r++)
    for (int j = 0; j < V; j++) store(o + r * ldo + d + j * W, acc[r][j]);
}

template <int R, class T>
inline void mix_rows(const float* p, const void* const* values, int n, int dim, float* o,
                     int ldo) {
  int d = 0;
  for (; d + NV * W <= dim; d += NV * W) mix_tile<R, NV, T>(p, values, n, d, o, ldo);
  for (; d + W <= dim; d += W) mix_tile<R, 1, T>(p, values, n, d, o, ldo);
  for (; d < dim; d++)
    for (int c = 0; c < n; c++)
      for (int r = 0; r < R; r++)
        o[r * ldo + d] += p[r * CHUNK + c] * widen(static_cast<const T*>(values[c])[d]);
}

template <class T>
void mix(const float* p, int rows, const void* const* values, int n, int dim, float* o, int ldo) {
  int r = 0;
  for (; r + ROWS <= rows; r += ROWS)
    mix_rows<ROWS, T>(p + r * CHUNK, values, n, dim, o + r * ldo, ldo);
  if (ROWS > 2 && rows - r == 3) {
    mix_rows<3, T>(p + r * CHUNK, values, n, dim, o + r * ldo, ldo);
    return;
  }
  for (; r < rows; r++) mix_rows<1, T>(p + r * CHUNK, values, n, dim, o + r * ldo, ldo);
}

void cap_scores(float* s, float cap) {
  for (int c = 0; c < CHUNK; c += W) {
    vf y = load(s + c) * (2.f / cap);
    y = y > 30.f ? splat(30.f) : y;
    y = y < -30.f ? splat(-30.f) : y;
    store(s + c, cap - (2.f * cap) / (exp_vec(y) + 1.f));  // cap * tanh(s / cap)
  }
}

// Turn one query's scores of keys [begin, end) of the chunk into weights; renew m, l and o.
void soften(float* s, int begin, int end, float* m, float* l, float* o, int padded) {
  for (int c = 0; c < begin; c++) s[c] = -INFINITY;
  for (int c = end; c < CHUNK; c++) s[c] = -INFINITY;
  vf top = load(s);
  for (int c = W; c < CHUNK; c += W) {
    const vf x = load(s + c);
    top = x > top ? x : top;
  }
  const float highest = largest(top);
  const float next = highest > *m ? highest : *m;
  vf total = {};
  for (int c = 0; c < CHUNK; c += W) {
    const vf p = exp_vec(load(s + c) - next);
    total += p;
    store(s + c, p);
  }
  if (next != *m) {
    const float shrink = std::exp(*m - next);
    for (int d = 0; d < padded; d += W) store(o + d, load(o + d) * shrink);
    *l *= shrink;
    *m = next;
  }
  *l += sum(total);
}

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
