"""Bodies that are meant to be dear to read: for each protocol many kinds, at any size.

A kind fills one place of a body that is otherwise valid with one thing: as many of it as fit.
"""

import base64
import json
from collections.abc import Callable, Iterator

Body = Callable[[int], bytes]  # of about this many bytes

USER_BLOCK = b'{"max_tokens":9,"messages":[{"role":"user","content":[{"type":'
HI = b'{"role":"user","content":"hi"}'
JPEG = b"\xff\xd8" + b"\xff\xe0\0\2" * 16_000  # segments without anything in them
PDF = b"%PDF-" + b"/Type /Page" * 4_000
TEXT = b" " * 16_000  # the tokenizer takes long for it
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\0\x10\0" * 2


def filled(head: bytes, item: bytes, tail: bytes, between: bytes = b"") -> Body:
    """As many items as fit."""
    return lambda size: (
        head + between.join([item] * max(1, (size - len(head) - len(tail)) // len(item + between))) + tail
    )


def numbered(head: bytes, item: bytes, tail: bytes, between: bytes = b",", most: int = 10**9) -> Body:
    """As many items as fit, each with its number in the place of every `%`."""

    def body(size: int) -> bytes:
        count = min(most, max(1, (size - len(head) - len(tail)) // (len(item) + 6)))
        return head + between.join([item.replace(b"%", b"%07x" % number) for number in range(count)]) + tail

    return body


def spread(head: bytes, item: bytes, tail: bytes, count: int, fill: bytes) -> Body:
    """So many items, each with its number in the place of every `%`, and with its share of the size in that of `~`."""

    def body(size: int) -> bytes:
        times = max(1, (size - len(head) - len(tail)) // count - len(item)) // len(fill)
        items = [item.replace(b"~", fill * times).replace(b"%", b"%04x" % number) for number in range(count)]
        return head + b",".join(items) + tail

    return body


VALUES: dict[str, tuple[bytes, bytes, bytes]] = {  # what begins a JSON value, what is repeated in it, and what ends it
    "quotes that never close": (b'"', b'\\"', b""),
    "quotes": (b'"', b'\\"', b'"'),
    "backslashes": (b'"', b"\\\\", b'"'),
    "newlines": (b'"', b"\\n", b'"'),
    "slashes": (b'"', b"\\/", b'"'),
    "escapes": (b'"', b"\\u00e9", b'"'),
    "surrogates": (b'"', b"\\ud83d\\ude00", b'"'),
    "half a surrogate": (b'"', b"\\ud83d\\ude00", b'\\ud83d"'),
    "letters": (b'"', b"a", b'"'),
    "spaces": (b'"', b" ", b'"'),
    "runs": (b'"', b"-=" + b"-" * 63 + b"=" * 63, b'"'),
    "accents": (b'"', "é".encode(), b'"'),
    "emoji": (b'"', "\N{GRINNING FACE}".encode(), b'"'),
    "broken utf-8": (b'"', b"a", b'\xff"'),
    "digits": (b"", b"7", b""),
    "a fraction": (b"0.", b"7", b""),
    "an exponent": (b"1e", b"9", b""),
    "brackets": (b"", b"[", b""),
    "nested": (b"", b'{"a":', b""),
    "empty arrays": (b"[", b"[],", b"0]"),
    "empty texts": (b"[", b'"",', b'""]'),
    "numbers": (b"[", b"1,", b"1]"),
    "objects": (b"[", b'{"a":1},', b"0]"),
    "the same key": (b"{", b'"a":1,', b'"a":1}'),
    "blanks": (b"[", b" ", b"]"),
}


def values(head: bytes, tail: bytes) -> Iterator[tuple[str, Body]]:
    for name, (begin, item, end) in VALUES.items():
        yield name, filled(head + begin, item, end + tail)
    yield "other keys", numbered(head + b"{", b'"%":1', b"}" + tail)


PLACES: dict[str, dict[str, tuple[bytes, bytes]]] = {  # by protocol: what stands before and after a value
    "chat": {
        "the body": (b"", b""),
        "an unknown field": (b'{"messages":[%b],"x":' % HI, b"}"),
        "a content": (b'{"messages":[{"role":"user","content":', b"}]}"),
        "a part": (b'{"messages":[{"role":"user","content":[{"type":"text","text":', b"}]}]}"),
        "a part's type": (b'{"messages":[{"role":"user","content":[{"type":', b"}]}]}"),
        "an image": (b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":', b"}}]}]}"),
        "an image's object": (b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":', b"}]}]}"),
        "a sound": (b'{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":', b"}]}]}"),
        "a file": (b'{"messages":[{"role":"user","content":[{"type":"file","file":{"file_data":', b"}}]}]}"),
        "a file's name": (
            b'{"messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"aaaa","filename":',
            b"}}]}]}",
        ),
        "messages": (b'{"messages":', b"}"),
        "a role": (b'{"messages":[{"content":"hi","role":', b"}]}"),
        "an unknown field of a message": (b'{"messages":[{"role":"user","content":"hi","x":', b"}]}"),
        "a developer": (b'{"messages":[%b,{"role":"developer","content":"hi","x":' % HI, b"}]}"),
        "annotations": (b'{"messages":[%b,{"role":"assistant","content":"hi","annotations":' % HI, b"}]}"),
        "reasoning": (b'{"messages":[%b,{"role":"assistant","content":"hi","reasoning":' % HI, b"}]}"),
        "the model": (b'{"messages":[%b],"model":' % HI, b"}"),
        "a limit": (b'{"messages":[%b],"max_tokens":' % HI, b"}"),
        "n": (b'{"messages":[%b],"n":' % HI, b"}"),
        "temperature": (b'{"messages":[%b],"temperature":' % HI, b"}"),
        "stop": (b'{"messages":[%b],"stop":' % HI, b"}"),
        "a schema of the answer": (b'{"messages":[%b],"response_format":' % HI, b"}"),
        "logit_bias": (b'{"messages":[%b],"logit_bias":' % HI, b"}"),
        "modalities": (b'{"messages":[%b],"modalities":' % HI, b"}"),
        "usage": (b'{"messages":[%b],"usage":' % HI, b"}"),
        "tools": (b'{"messages":[%b],"tools":' % HI, b"}"),
        "a name of a tool": (b'{"messages":[%b],"tools":[{"type":"function","function":{"name":' % HI, b"}}]}"),
        "a schema": (
            b'{"messages":[%b],"tools":[{"type":"function","function":{"name":"a","parameters":{"a":' % HI,
            b"}}}]}",
        ),
        "a choice": (
            b'{"messages":[%b],"tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":' % HI,
            b"}",
        ),
        "arguments": (
            b'{"messages":[%b,{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"a","arguments":' % HI,
            b'}}]},{"role":"tool","tool_call_id":"a","content":"b"}]}',
        ),
        "the id of a call": (
            b'{"messages":[%b,{"role":"assistant","tool_calls":[{"function":{"name":"a"},"id":' % HI,
            b'}]},{"role":"tool","tool_call_id":"a","content":"b"}]}',
        ),
    },
    "messages": {
        "the body": (b"", b""),
        "an unknown field": (b'{"max_tokens":9,"messages":[%b],"x":' % HI, b"}"),
        "a content": (b'{"max_tokens":9,"messages":[{"role":"user","content":', b"}]}"),
        "a block": (b'{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":', b"}]}]}"),
        "a block's type": (b'{"max_tokens":9,"messages":[%b,{"role":"assistant","content":[{"type":' % HI, b"}]}]}"),
        "the data of an image": (
            USER_BLOCK + b'"image","source":{"type":"base64","media_type":"image/jpeg","data":',
            b"}}]}]}",
        ),
        "a source": (
            b'{"max_tokens":9,"messages":[{"role":"user","content":[{"type":"image","source":',
            b"}]}]}",
        ),
        "thinking": (
            b'{"max_tokens":9,"messages":[%b,{"role":"assistant","content":[{"type":"thinking","thinking":' % HI,
            b"}]}]}",
        ),
        "the input of a call": (
            b'{"max_tokens":9,"messages":[%b,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"a",'
            b'"input":' % HI,
            b'}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]}',
        ),
        "a result": (
            b'{"max_tokens":9,"messages":[%b,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"a"}]},'
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":' % HI,
            b"}]}]}",
        ),
        "system": (b'{"max_tokens":9,"messages":[%b],"system":' % HI, b"}"),
        "the model": (b'{"max_tokens":9,"messages":[%b],"model":' % HI, b"}"),
        "a limit": (b'{"messages":[%b],"max_tokens":' % HI, b"}"),
        "stops": (b'{"max_tokens":9,"messages":[%b],"stop_sequences":' % HI, b"}"),
        "tools": (b'{"max_tokens":9,"messages":[%b],"tools":' % HI, b"}"),
        "the name of a tool": (b'{"max_tokens":9,"messages":[%b],"tools":[{"name":' % HI, b"}]}"),
        "the type of a tool": (b'{"max_tokens":9,"messages":[%b],"tools":[{"name":"a","type":' % HI, b"}]}"),
        "a schema": (b'{"max_tokens":9,"messages":[%b],"tools":[{"name":"a","input_schema":{"a":' % HI, b"}}]}"),
        "a choice": (b'{"max_tokens":9,"messages":[%b],"tool_choice":' % HI, b"}"),
        "a form": (
            b'{"max_tokens":9,"messages":[%b],"output_config":{"format":{"type":"json_schema","schema":' % HI,
            b"}}}",
        ),
        "a thread": (b'{"max_tokens":9,"messages":[%b],"thread":' % HI, b"}"),
    },
    "responses": {
        "the body": (b"", b""),
        "an unknown field": (b'{"input":"hi","x":', b"}"),
        "input": (b'{"input":', b"}"),
        "an item": (b'{"input":[%b,' % HI, b"]}"),
        "the type of an item": (b'{"input":[%b,{"type":' % HI, b"}]}"),
        "a content": (b'{"input":[{"role":"user","content":', b"}]}"),
        "a part": (b'{"input":[{"role":"user","content":[{"type":"input_text","text":', b"}]}]}"),
        "an image": (b'{"input":[{"role":"user","content":[{"type":"input_image","image_url":', b"}]}]}"),
        "a file": (b'{"input":[{"role":"user","content":[{"type":"input_file","file_data":', b"}]}]}"),
        "instructions": (b'{"input":"hi","instructions":', b"}"),
        "reasoning": (b'{"input":[%b,{"type":"reasoning","encrypted_content":' % HI, b"}]}"),
        "a summary": (b'{"input":[%b,{"type":"reasoning","summary":' % HI, b"}]}"),
        "arguments": (
            b'{"input":[%b,{"type":"function_call","call_id":"a","name":"a","arguments":' % HI,
            b'},{"type":"function_call_output","call_id":"a","output":"b"}]}',
        ),
        "an output": (
            b'{"input":[%b,{"type":"function_call","call_id":"a","name":"a"},'
            b'{"type":"function_call_output","call_id":"a","output":' % HI,
            b"}]}",
        ),
        "the id of a call": (b'{"input":[%b,{"type":"function_call","name":"a","call_id":' % HI, b"}]}"),
        "a namespace of a call": (
            b'{"input":[%b,{"type":"function_call","call_id":"a","name":"a","namespace":' % HI,
            b'},{"type":"function_call_output","call_id":"a","output":"b"}]}',
        ),
        "the model": (b'{"input":"hi","model":', b"}"),
        "a limit": (b'{"input":"hi","max_output_tokens":', b"}"),
        "metadata": (b'{"input":"hi","metadata":', b"}"),
        "text": (b'{"input":"hi","text":{"format":', b"}}"),
        "include": (b'{"input":"hi","include":', b"}"),
        "tools": (b'{"input":"hi","tools":', b"}"),
        "the name of a tool": (b'{"input":"hi","tools":[{"type":"function","name":', b"}]}"),
        "the type of a tool": (b'{"input":"hi","tools":[{"name":"a","type":', b"}]}"),
        "a schema": (b'{"input":"hi","tools":[{"type":"function","name":"a","parameters":{"a":', b"}}]}"),
        "a grammar": (b'{"input":"hi","tools":[{"type":"custom","name":"a","format":', b"}]}"),
        "a namespace": (b'{"input":"hi","tools":[{"type":"namespace","name":"a","tools":', b"}]}"),
        "a choice": (b'{"input":"hi","tools":[{"type":"function","name":"a"}],"tool_choice":', b"}"),
    },
}


def encoded(data: bytes) -> bytes:
    return base64.b64encode(data)


def chat_image(data: bytes, media_type: bytes = b"image/jpeg") -> bytes:
    return b'{"type":"image_url","image_url":{"url":"data:%b;base64,%b"}}' % (media_type, encoded(data))


ANSWERED = (
    b'{"role":"assistant","tool_calls":[{"id":"%","function":{"name":"a"}}]},'
    b'{"role":"tool","tool_call_id":"%","content":"b"}'
)
PARTS = b'{"messages":[{"role":"user","content":['
CALLS = b'{"messages":[%b,{"role":"assistant","tool_calls":[' % HI


def _calls(size: int) -> bytes:
    """Calls of one message, and their answers in the opposite order."""
    ids = [b"%06x" % number for number in range(size // 100)]
    calls = [b'{"id":"%b","function":{"name":"a"}}' % one for one in ids]
    answers = [b'{"role":"tool","tool_call_id":"%b","content":""}' % one for one in reversed(ids)]
    return CALLS + b",".join(calls) + b"]}," + b",".join(answers) + b"]}"


def _namespace(size: int) -> bytes:
    """Half of it the namespace's own name, the rest tools."""
    tools = [{"type": "function", "name": f"{number:x}"} for number in range(min(1_000, size // 80))]
    space = {"type": "namespace", "name": "é" * (size // 4), "tools": tools}
    return json.dumps({"input": "hi", "tools": [space]}, ensure_ascii=False).encode()


MANY: dict[str, dict[str, Body]] = {  # by protocol: many of what has a structure of its own
    "chat": {
        "messages": filled(b'{"messages":[', HI, b"]}", b","),
        "messages with a field": filled(b'{"messages":[', b'{"role":"user","content":"","annotations":0}', b"]}", b","),
        "developers": filled(b'{"messages":[%b,' % HI, b'{"role":"developer","content":"hi"}', b"]}", b","),
        "system messages": filled(b'{"messages":[', b'{"role":"system","content":"hi"}', b"]}", b","),
        "tiny messages": filled(b'{"messages":[', b'{"role":""}', b"]}", b","),
        "text parts": filled(PARTS, b'{"type":"text","text":""}', b"]}]}", b","),
        "text parts that blanks are between": filled(PARTS, b'{ "type" : "text" , "text" : "\\n" }', b"]}]}", b" , "),
        "refusals": filled(
            b'{"messages":[%b,{"role":"assistant","content":[' % HI, b'{"type":"refusal","refusal":""}', b"]}]}", b","
        ),
        "messages with a part": filled(
            b'{"messages":[', b'{"role":"user","content":[{"type":"text","text":"a"}]}', b"]}", b","
        ),
        "images with an address": filled(PARTS, b'{"type":"image_url","image_url":{"url":"a"}}', b"]}]}", b","),
        "tiny images": filled(PARTS, chat_image(PNG, b"image/png"), b"]}]}", b","),
        "images of segments": filled(PARTS, chat_image(JPEG), b"]}]}", b","),
        "small images of segments": filled(PARTS, chat_image(JPEG[:3_000]), b"]}]}", b","),
        "larger images of segments": filled(PARTS, chat_image(JPEG[:20_000]), b"]}]}", b","),
        "an image of segments": lambda size: PARTS + chat_image(JPEG[:2] + JPEG[2:6] * (size // 8)) + b"]}]}",
        "pdfs": filled(
            PARTS,
            b'{"type":"file","file":{"file_data":"data:application/pdf;base64,%b"}}' % encoded(PDF),
            b"]}]}",
            b",",
        ),
        "small files": filled(PARTS, b'{"type":"file","file":{"file_data":"aaaa"}}', b"]}]}", b","),
        "texts that are counted, because of a file": filled(
            PARTS,
            b'{"type":"text","text":"%b"}' % TEXT,
            b']},{"role":"user","content":[{"type":"file","file":{"file_data":"aaaa"}}]}]}',
            b",",
        ),
        "calls": numbered(b'{"messages":[%b,' % HI, ANSWERED, b"]}"),
        "calls of one message": _calls,
        "long ids of calls": spread(b'{"messages":[%b,' % HI, ANSWERED.replace(b"%", b"%~"), b"]}", 64, b"a"),
        "our ids of calls": spread(CALLS, b'{"id":"call_cdz_%~","function":{"name":"a"}}', b"]}]}", 200, b"YWFh"),
        "tools": numbered(b'{"messages":[%b],"tools":[' % HI, b'{"type":"function","function":{"name":"%"}}', b"]}"),
        "large tools": spread(
            b'{"messages":[%b],"tools":[' % HI,
            b'{"type":"function","function":{"name":"%","description":"~"}}',
            b"]}",
            128,
            b"a",
        ),
        "allowed tools": filled(
            b'{"messages":[%b],"tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":{"type":'
            b'"allowed_tools","allowed_tools":{"mode":"auto","tools":[' % HI,
            b'{"type":"function","function":{"name":"a"}}',
            b"]}}}",
            b",",
        ),
        "unknown fields": numbered(b'{"messages":[%b],' % HI, b'"%":1', b"}"),
        "a field again and again": filled(b'{"messages":[%b],' % HI, b'"model":"a"', b"}", b","),
        "contents again and again": filled(b'{"messages":[{"role":"user",', b'"content":"a"', b"}]}", b","),
        "fields of a message": numbered(b'{"messages":[{"role":"developer","content":"a",', b'"%":1', b"}]}"),
        "fields of a message with calls": numbered(
            b'{"messages":[%b,{"role":"assistant","annotations":[],"content":"a",' % HI, b'"%":1', b"}]}"
        ),
    },
    "messages": {
        "messages": filled(b'{"max_tokens":9,"messages":[', HI, b"]}", b","),
        "system messages": filled(b'{"max_tokens":9,"messages":[', b'{"role":"system","content":"a"}', b"]}", b","),
        "blocks": filled(
            b'{"max_tokens":9,"messages":[{"role":"user","content":[', b'{"type":"text","text":""}', b"]}]}", b","
        ),
        "blocks of the system": filled(
            b'{"max_tokens":9,"messages":[%b],"system":[' % HI, b'{"type":"text","text":""}', b"]}", b","
        ),
        "blocks of a result": filled(
            b'{"max_tokens":9,"messages":[%b,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"a"}]},'
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[' % HI,
            b'{"type":"text","text":""}',
            b"]}]}]}",
            b",",
        ),
        "results": filled(
            b'{"max_tokens":9,"messages":[%b,{"role":"user","content":[' % HI,
            b'{"type":"tool_result","tool_use_id":"a"}',
            b"]}]}",
            b",",
        ),
        "thoughts": filled(
            b'{"max_tokens":9,"messages":[%b,{"role":"assistant","content":[' % HI,
            b'{"type":"thinking","thinking":"a"}',
            b"]}]}",
            b",",
        ),
        "unknown blocks": numbered(
            b'{"max_tokens":9,"messages":[%b,{"role":"assistant","content":[' % HI, b'{"type":"%"}', b"]}]}"
        ),
        "calls with long names": spread(
            b'{"max_tokens":9,"messages":[%b,{"role":"assistant","content":[' % HI,
            b'{"type":"tool_use","id":"%","name":"%~"}',
            b"]}]}",
            400,
            b"\xc3\xa9",
        ),
        "images": filled(
            b'{"max_tokens":9,"messages":[{"role":"user","content":[',
            b'{"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"%b"}}'
            % encoded(JPEG[:3_000]),
            b"]}]}",
            b",",
        ),
        "tools": numbered(b'{"max_tokens":9,"messages":[%b],"tools":[' % HI, b'{"name":"%"}', b"]}", most=1024),
        "too many tools": numbered(b'{"max_tokens":9,"messages":[%b],"tools":[' % HI, b'{"name":"%"}', b"]}"),
        "tools with long names": spread(
            b'{"max_tokens":9,"messages":[%b],"tools":[' % HI, b'{"name":"%~"}', b"]}", 1024, b"a"
        ),
        "dropped tools": numbered(
            b'{"max_tokens":9,"messages":[%b],"tools":[' % HI, b'{"name":"%","type":"%"}', b"]}", most=1024
        ),
        "changed tools": numbered(
            b'{"max_tokens":9,"messages":[%b,{"role":"system","content":[' % HI,
            b'{"type":"tool_addition","tool":{"definition":{"name":"%"}}}',
            b"]}]}",
        ),
        "stops": filled(b'{"max_tokens":9,"messages":[%b],"stop_sequences":[' % HI, b'""', b"]}", b","),
        "unknown fields": numbered(b'{"max_tokens":9,"messages":[%b],' % HI, b'"%":1', b"}"),
        "a field again and again": filled(
            b'{"max_tokens":9,"messages":[%b],' % HI, b'"thinking":{"type":"a"}', b"}", b","
        ),
    },
    "responses": {
        "items": filled(b'{"input":[', HI, b"]}", b","),
        "empty items": filled(b'{"input":[', b'{"type":"message"}', b"]}", b","),
        "unknown items": numbered(b'{"input":[', b'{"type":"%"}', b"]}"),
        "parts": filled(b'{"input":[{"role":"user","content":[', b'{"type":"input_text","text":""}', b"]}]}", b","),
        "parts of the assistant": filled(
            b'{"input":[%b,{"role":"assistant","content":[' % HI, b'{"type":"output_text","text":""}', b"]}]}", b","
        ),
        "texts of a turn": filled(
            b'{"input":[%b,{"type":"function_call","call_id":"a","name":"a"},' % HI,
            b'{"role":"assistant","content":"%b"}' % (b"a" * 2_000),
            b"]}",
            b",",
        ),
        "calls": numbered(
            b'{"input":[%b,' % HI,
            b'{"type":"function_call","call_id":"%","name":"a"},'
            b'{"type":"function_call_output","call_id":"%","output":"b"}',
            b"]}",
        ),
        "open calls": numbered(b'{"input":[', b'{"type":"function_call","call_id":"%","name":"a"}', b"]}"),
        "calls with namespaces": spread(
            b'{"input":[',
            b'{"type":"function_call","call_id":"%","name":"a","namespace":"~"}',
            b"]}",
            400,
            b"\xc3\xa9",
        ),
        "reasoning": filled(
            b'{"input":[%b,' % HI,
            b'{"type":"reasoning","encrypted_content":"%b"}' % encoded(b'{"reasoning_details":[1,2,3]}'),
            b"]}",
            b",",
        ),
        "reasoning that grows": filled(
            b'{"input":[%b,{"type":"function_call","call_id":"a","name":"a"},' % HI,
            b'{"type":"reasoning","encrypted_content":"%b"},{"role":"assistant","content":""}'
            % encoded(b'{"reasoning_details":["%b"]}' % (b"a" * 3_000)),
            b"]}",
            b",",
        ),
        "summaries": filled(
            b'{"input":[%b,{"type":"reasoning","summary":[' % HI, b'{"type":"summary_text","text":""}', b"]}]}", b","
        ),
        "images": filled(
            b'{"input":[{"role":"user","content":[',
            b'{"type":"input_image","image_url":"data:image/jpeg;base64,%b"}' % encoded(JPEG[:3_000]),
            b"]}]}",
            b",",
        ),
        "tools": numbered(b'{"input":"hi","tools":[', b'{"type":"function","name":"%"}', b"]}", most=1024),
        "tools with long names": spread(
            b'{"input":"hi","tools":[', b'{"type":"function","name":"%~"}', b"]}", 1024, b"a"
        ),
        "tools of a long namespace": _namespace,
        "namespaces": numbered(
            b'{"input":"hi","tools":[',
            b'{"type":"namespace","name":"%","tools":[{"type":"function","name":"a"}]}',
            b"]}",
        ),
        "empty namespaces": filled(b'{"input":"hi","tools":[', b'{"type":"namespace","name":"a"}', b"]}", b","),
        "allowed tools": filled(
            b'{"input":"hi","tools":[{"type":"function","name":"a"}],"tool_choice":{"type":"allowed_tools","mode":'
            b'"auto","tools":[',
            b'{"type":"function","name":"a"}',
            b"]}}",
            b",",
        ),
        "allowed tools of a namespace": spread(
            b'{"input":"hi","tools":[{"type":"function","name":"a"}],"tool_choice":{"type":"allowed_tools","mode":'
            b'"auto","tools":[',
            b'{"type":"function","name":"%","namespace":"~"}',
            b"]}}",
            600,
            b"\xc3\xa9",
        ),
        "included": numbered(b'{"input":"hi","include":[', b'"%"', b"]}"),
        "unknown fields": numbered(b'{"input":"hi",', b'"%":1', b"}"),
        "a field again and again": filled(b'{"input":"hi",', b'"text":{"format":{"type":"text"}}', b"}", b","),
    },
}


def bodies(protocol: str) -> dict[str, Body]:
    """All kinds of a protocol, by a name that says what they have."""
    found = {f"many: {name}": body for name, body in MANY[protocol].items()}
    for place, (head, tail) in PLACES[protocol].items():
        found |= {f"{place}: {name}": body for name, body in values(head, tail)}
    return found
