"""What of a URL is shown and stored: nothing that gives access."""

from __future__ import annotations

import pytest

from wireyard.streams.urls import shown_target, shown_text, shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@bucket/a/b.pcap", "s3://bucket/a/b.pcap"),
        ("s3://key:se/cr@et@bucket/a.pcap?region=eu", "s3://bucket/a.pcap?region=eu"),
        ("https://token@host/a", "https://host/a"),
        ("https://host:8080/a@b/c", "https://host:8080/a@b/c"),
        ("s3://bucket/a@b.pcap", "s3://bucket/a@b.pcap"),
        ("https://host/a?X-Amz-Signature=abc&X=1", "https://host/a?X-Amz-Signature=***&X=***"),
        ("https://host/a?token", "https://host/a?***"),
        ("https://host/a?a=1;b=2", "https://host/a?a=***&b=***"),
        ("https://host/a b?sig=x y", "https://host/a b?sig=***"),
        ("https://host/a#access_token=x", "https://host/a#***"),
        ("s3://b/a?endpoint_override=127.0.0.1:1&scheme=http", "s3://b/a?endpoint_override="
         "127.0.0.1:1&scheme=http"),
        ("https://host/a?region=eu&scheme=http&sig=r", "https://host/a?region=eu&scheme=http&sig=***"),
        ("a/user:pass@b?c=d#e", "a/user:pass@b?c=d#e"),
        ("-", "-"),
    ],
)  # fmt: skip
def test_urls(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert shown_url(shown) == shown


def test_text_with_urls() -> None:
    text = "cannot read 's3://k:s@b/c?sig=x' (see https://u@h/d?t=1) - a?b=c"
    assert shown_text(text) == "cannot read 's3://b/c?sig=***' (see https://h/d?t=***) - a?b=c"


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/mqtt", "/mqtt"),
        ("/mqtt?token=abc&x=1", "/mqtt?token=***&x=***"),
        ("http://u:p@h/mqtt?t=1", "http://h/mqtt?t=***"),
        ("/a;jsessionid=1/b?c", "/a;jsessionid=***?***"),
        ("/imqhttp/tunnel?Type=push&ConnId=7", "/imqhttp/tunnel?Type=push&ConnId=***"),
        ("", ""),
    ],
)
def test_targets(target: str, shown: str) -> None:
    assert shown_target(target) == shown
