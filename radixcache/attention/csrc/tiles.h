// The inner loops: scores of a tile of queries, their running softmax, and the mix of values.

#pragma once

#include <cmath>

#include "simd.h"

namespace {

constexpr int CHUNK = 64;            // keys a running-softmax update

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

}  // namespace
