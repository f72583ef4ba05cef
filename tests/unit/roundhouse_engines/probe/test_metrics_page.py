import pytest
from roundhouse_engines.errors import ProbeError
from roundhouse_engines.probe import LoadReport
from roundhouse_engines.vllm.metrics_page import read_page

CACHE = 'enable_prefix_caching="True",kv_cache_size_tokens="992",num_gpu_blocks="32"'
PAGE = f"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} 6.0
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} 10.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="tiny",reason="capacity"}} 10.0
vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} 0.967741935483871
vllm:generation_tokens_total{{engine="0",model_name="tiny"}} 1.2e+03
vllm:generation_tokens_created{{engine="0",model_name="tiny"}} 1.7960484323870974e+09
vllm:cache_config_info{{block_size="32",cache_dtype="auto",{CACHE}}} 1.0
"""


def test_todays_names() -> None:
    report, cache = read_page(PAGE)
    assert report == LoadReport(10, 6, pytest.approx(0.9677, abs=1e-3), 992, 32, 1200)
    assert cache["enable_prefix_caching"] == "True"


def test_older_names_and_a_cache_size_from_blocks() -> None:
    page = PAGE.replace("kv_cache_usage_perc", "gpu_cache_usage_perc").replace('kv_cache_size_tokens="992",', "")
    report, _ = read_page(page)
    assert (report.kv_used, report.kv_tokens) == (pytest.approx(0.9677, abs=1e-3), 1024)


def test_ranks_are_summed() -> None:
    second = PAGE.replace('engine="0"', 'engine="1"').replace("0.967741935483871", "0.0")
    report, _ = read_page(PAGE + second)
    assert (report.running, report.waiting, report.tokens_total) == (12, 20, 2400)
    assert report.kv_used == pytest.approx(0.4838, abs=1e-3)


def test_a_cache_that_is_not_measured_yet_is_unknown() -> None:
    report, _ = read_page(PAGE.replace('"992"', '"None"').replace('num_gpu_blocks="32"', 'num_gpu_blocks="None"'))
    assert report.kv_tokens == 0


@pytest.mark.parametrize(
    "page", ["", "nonsense", PAGE.replace("num_requests_waiting{", "x{"), PAGE.replace(" 6.0", " six")]
)
def test_missing_or_unreadable_figures_are_unknown_and_not_zero(page: str) -> None:
    with pytest.raises(ProbeError):
        read_page(page)
