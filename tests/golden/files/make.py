"""Makes the files of this folder: the rows of rows.jsonl, as Parquet files of several programs and as packed texts.

    pip install pyarrow datasets polars duckdb zstandard
    python make.py
"""

import gzip
import json
import random

import datasets
import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

random.seed(5)
words = ["In", "the", "beginning", "wörd", "漢字", '"quoted"', "a\\b", "two\nlines", "\ttab", "😀", ""]


def text():
    return " ".join(random.choice(words) for _ in range(random.randrange(1, 9)))


def messages(i):
    return [{"role": ["user", "assistant"][j % 2], "content": None if (i + j) % 11 == 7 else text()} for j in range(2 + 2 * (i % 2))]


rows = [{"text": text(), "messages": None if i % 13 == 5 else [] if i % 13 == 8 else messages(i), "prompt": text(),
         "completion": None if i == 9 else "Yes.", "input_ids": [random.randrange(256) for _ in range(i % 7)], "id": i * 1000003 - 9000000,
         "score": i / 7, "ok": None if i % 5 == 1 else i % 3 == 0, "tags": {"x": text(), "y": None if i % 4 else [[i], []]}} for i in range(53)]
schema = pa.schema([("text", pa.string()), ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.large_string())]))),
                    ("prompt", pa.string()), ("completion", pa.string()), ("input_ids", pa.list_(pa.int32())), ("id", pa.int64()),
                    ("score", pa.float64()), ("ok", pa.bool_()), ("tags", pa.struct([("x", pa.string()), ("y", pa.list_(pa.list_(pa.int16())))]))])
lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
open("rows.jsonl", "wb").write(b"".join(lines))
with open("rows.jsonl.gz", "wb") as packed:  # two members, of which the second begins within a line
    packed.write(gzip.compress(b"".join(lines)[:5001], mtime=0) + gzip.compress(b"".join(lines)[5001:], mtime=0))
with open("rows.jsonl.zst", "wb") as packed:
    pack = zstandard.ZstdCompressor(write_checksum=True).compress
    packed.write(pack(b"".join(lines)[:5001]) + pack(b"".join(lines)[5001:]))

table = pa.Table.from_pylist(rows, schema=schema)
small = {"store_schema": False, "write_statistics": False}
pq.write_table(table, "pyarrow.parquet", row_group_size=20, **small)  # Snappy, dictionaries, pages of version 1
pq.write_table(table, "pyarrow-gzip-v2.parquet", compression="gzip", data_page_version="2.0", use_dictionary=False, data_page_size=300,
               write_page_checksum=True, **small)
deltas = {"text": "DELTA_BYTE_ARRAY", "prompt": "DELTA_LENGTH_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED", "input_ids.list.element": "DELTA_BINARY_PACKED",
          "ok": "RLE", "score": "BYTE_STREAM_SPLIT"}
pq.write_table(table, "pyarrow-zstd-delta.parquet", compression="zstd", use_dictionary=False, data_page_version="2.0", column_encoding=deltas, **small)
pq.write_table(table, "pyarrow-old.parquet", compression="none", version="1.0", use_compliant_nested_type=False, **small)
pq.write_table(table.slice(0, 3).select(["text"]), "brotli.parquet", compression="brotli", **small)
pq.write_table(table.slice(0, 12).select(["text", "messages", "ok"]), "small.parquet", compression="snappy", **small)
datasets.Dataset.from_list(rows, features=datasets.Features.from_arrow_schema(schema)).to_parquet("datasets.parquet")
polars.from_arrow(table).write_parquet("polars.parquet", row_group_size=30)  # zstd
of_rows = table
duckdb.sql("copy (select * from of_rows) to 'duckdb.parquet' (format parquet)")
