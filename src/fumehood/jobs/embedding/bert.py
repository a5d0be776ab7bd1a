"""The forward pass of a small BERT, in numpy.

Texts of a batch are laid end to end instead of padded: only attention has to know where one ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fumehood.errors import ConfigurationError
from fumehood.jobs.embedding.safetensors import Floats

EPSILON = 1e-12
_ROWS = 64
"""Rows at a time through GELU: 64 x 1536 floats stay in a core's cache through all of its passes."""
_ROOT_HALF = np.float32(0.7071067811865476)
_ERF_ABOVE = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
              -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
_ERF_BELOW = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
              -1.42647390514189e-02)  # fmt: skip
_ERF_END = np.float32(4.0)
"""Beyond it, erf is 1 to the last digit of a 32-bit float."""


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    heads: int
    width: int
    inner: int
    vocabulary: int
    positions: int


MINILM = Shape(layers=6, heads=12, width=384, inner=1536, vocabulary=30_522, positions=512)


@dataclass(frozen=True, slots=True)
class Dense:
    weight: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        found: Floats = rows @ self.weight.T
        found += self.bias
        return found


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        centred: Floats = rows - rows.mean(axis=-1, keepdims=True)
        spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        centred /= spread
        centred *= self.weight
        centred += self.bias
        return centred


@dataclass(frozen=True, slots=True)
class Layer:
    query: Dense
    key: Dense
    value: Dense
    joined: Dense
    joined_norm: Norm
    wide: Dense
    narrow: Dense
    norm: Norm


class Bert:
    def __init__(self, tensors: Mapping[str, Floats], shape: Shape) -> None:
        """`ConfigurationError` where a tensor is missing or has another shape than the model's."""
        weights = _Weights(tensors)
        self.shape = shape
        self._words = weights.take("embeddings.word_embeddings.weight", shape.vocabulary, shape.width)
        self._places = weights.take("embeddings.position_embeddings.weight", shape.positions, shape.width)
        self._kinds = weights.take("embeddings.token_type_embeddings.weight", 2, shape.width)
        self._norm = weights.norm("embeddings.LayerNorm", shape.width)
        self._layers = [_layer(weights, f"encoder.layer.{number}", shape) for number in range(shape.layers)]

    def means(self, texts: Sequence[Sequence[int]]) -> Floats:
        """For each text (none of them empty) the mean of what the last layer says of its pieces."""
        sizes = [len(text) for text in texts]
        ends = np.cumsum(sizes)
        spans = [slice(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]
        rows = self._embedded(texts)
        for layer in self._layers:
            rows = self._through(layer, rows, spans)
        return np.stack([rows[span].mean(axis=0) for span in spans])

    def _embedded(self, texts: Sequence[Sequence[int]]) -> Floats:
        ids = np.fromiter((piece for text in texts for piece in text), dtype=np.int64)
        places = np.concatenate([np.arange(len(text)) for text in texts])
        return self._norm(self._words[ids] + self._places[places] + self._kinds[0])

    def _through(self, layer: Layer, rows: Floats, spans: Sequence[slice]) -> Floats:
        query, key, value = layer.query(rows), layer.key(rows), layer.value(rows)
        mixed = np.empty_like(rows)
        for span in spans:
            mixed[span] = _attention(query[span], key[span], value[span], self.shape.heads)
        rows = layer.joined_norm(layer.joined(mixed) + rows)
        return layer.norm(layer.narrow(gelu(layer.wide(rows))) + rows)


def _attention(query: Floats, key: Floats, value: Floats, heads: int) -> Floats:
    count, width = query.shape
    split = (count, heads, width // heads)
    q, k, v = (part.reshape(split).transpose(1, 0, 2) for part in (query, key, value))
    scores: Floats = (q @ k.transpose(0, 2, 1)) * np.float32((width // heads) ** -0.5)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Floats = (scores @ v).transpose(1, 0, 2).reshape(count, width)
    return mixed


def gelu(rows: Floats) -> Floats:
    """In place: x/2 (1 + erf(x/√2)), the exact one, not its approximation by tanh."""
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        some *= (erf(some * _ROOT_HALF) + np.float32(1)) * np.float32(0.5)
    return rows


def erf(values: Floats) -> Floats:
    """numpy has none. A quotient of polynomials (that of Eigen and XLA) that stays within 7e-8 of the true value;
    32-bit numbers add their rounding, which makes it 5e-7. `math.erf` for each number takes 18 times as long."""
    x = np.clip(values, -_ERF_END, _ERF_END)
    square = x * x
    found: Floats = x * _polynomial(_ERF_ABOVE, square) / _polynomial(_ERF_BELOW, square)
    return found


def _polynomial(factors: Sequence[float], x: Floats) -> Floats:
    found = np.full_like(x, factors[0])
    for factor in factors[1:]:
        found *= x
        found += np.float32(factor)
    return found


# --- weights ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weights:
    tensors: Mapping[str, Floats]

    def take(self, name: str, *shape: int) -> Floats:
        found = self.tensors.get(name)
        if found is None or found.shape != shape:
            raise ConfigurationError(f"the model has no tensor {name} of the shape {shape}")
        return found

    def dense(self, name: str, into: int, out: int) -> Dense:
        return Dense(self.take(f"{name}.weight", out, into), self.take(f"{name}.bias", out))

    def norm(self, name: str, width: int) -> Norm:
        return Norm(self.take(f"{name}.weight", width), self.take(f"{name}.bias", width))


def _layer(weights: _Weights, name: str, shape: Shape) -> Layer:
    width, inner = shape.width, shape.inner
    return Layer(
        query=weights.dense(f"{name}.attention.self.query", width, width),
        key=weights.dense(f"{name}.attention.self.key", width, width),
        value=weights.dense(f"{name}.attention.self.value", width, width),
        joined=weights.dense(f"{name}.attention.output.dense", width, width),
        joined_norm=weights.norm(f"{name}.attention.output.LayerNorm", width),
        wide=weights.dense(f"{name}.intermediate.dense", width, inner),
        narrow=weights.dense(f"{name}.output.dense", inner, width),
        norm=weights.norm(f"{name}.output.LayerNorm", width),
    )
