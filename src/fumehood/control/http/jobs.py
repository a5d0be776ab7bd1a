"""Jobs, their types and their providers over HTTP."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of, idempotency_key
from fumehood.control.http.callers import caller_of, note, note_unchanged
from fumehood.control.http.queries import Query
from fumehood.control.jobs.jobs import Jobs, Submission
from fumehood.control.jobs.providers import Providers
from fumehood.door.schema import RETRY, Responses, problem_response
from fumehood.door.telemetry import current_traceparent
from fumehood.jobs.schemas import describe
from fumehood.jobs.unknown import unknown
from fumehood.wire import job_api, run_api

PATHS = (
    job_api.JOBS_PATH,
    job_api.JOB_PATH,
    job_api.CANCEL_JOB_PATH,
    job_api.JOB_TYPES_PATH,
    job_api.JOB_TYPE_PATH,
    job_api.PROVIDERS_PATH,
    job_api.SET_ASIDE_PATH,
    job_api.RESTORE_PATH,
)
MODELS: schema.Models = [
    (job_api.SubmitJobRequest, "validation"),
    (job_api.SetAsideRequest, "validation"),
    (job_api.JobView, "serialization"),
    (job_api.JobTypesView, "serialization"),
    (job_api.ProvidersView, "serialization"),
]
_JOB = schema.path("job_id", schema.RUN_PATTERN)
_TYPE = schema.path("name", r"^[a-z0-9_.]{1,96}$")
_WORKER = schema.path("worker_id", r"^[A-Za-z0-9_-]{1,128}$")
_KEY = schema.in_header(
    run_api.IDEMPOTENCY_HEADER,
    "The same key and job again is the same job",
    {"type": "string", "minLength": 1, "maxLength": run_api.LONGEST_KEY},
)
_NOT_FOUND: Responses = {404: problem_response("not-found")}
_SUBMITTED: Responses = {
    200: schema.answer("JobView", "The key was used before, for this job"),
    201: schema.answer("JobView", "The job is accepted, and will be done or say why not"),
    409: problem_response("conflict"),
    429: problem_response("quota-exceeded", extra_headers=RETRY),
    **_NOT_FOUND,
}
_GET: Responses = {200: schema.answer("JobView", "The job as it is now"), **_NOT_FOUND}
_CANCELLED: Responses = {202: schema.answer("JobView", "It ends; one that had ended stays as it was"), **_NOT_FOUND}
_TYPES: Responses = {200: schema.answer("JobTypesView", "All that this server knows")}
_ONE_TYPE: Responses = {200: schema.answer("JobTypeView", "What it is asked and answers"), **_NOT_FOUND}
_PROVIDERS: Responses = {200: schema.answer("ProvidersView", "Those that are there or are remembered, by name")}
_PROVIDER: Responses = {200: schema.answer("ProviderView", "How it stands now"), **_NOT_FOUND}


def jobs_router(jobs: Jobs, providers: Providers) -> APIRouter:
    router = APIRouter(tags=["jobs"])
    _jobs(router, jobs)
    _types(router, jobs)
    _providers(router, providers)
    return router


def _jobs(router: APIRouter, jobs: Jobs) -> None:
    @router.post(
        job_api.JOBS_PATH,
        **schema.operation("submit_job", "Have a job done", _SUBMITTED, _KEY, body="SubmitJobRequest"),
    )
    async def submit(request: Request) -> Response:
        asked = await body_of(job_api.SubmitJobRequest, request)
        caller = caller_of(request)
        wish = Submission(asked, idempotency_key(request), current_traceparent())
        job_id, created = await jobs.submit(wish, caller)
        note(request, target=job_id, job_type=asked.job_type, replayed=str(not created).lower())
        ignored = tuple(unknown(jobs.registry.type(asked.job_type).request, asked.payload)) or None
        view = (await jobs.get(job_id, caller)).model_copy(update={"ignored": ignored})
        return json_answer(view, 201 if created else 200)

    @router.get(job_api.JOB_PATH, **schema.operation("get_job", "Show a job", _GET, _JOB))
    async def get(request: Request) -> Response:
        Query(request)
        return json_answer(await jobs.get(request.path_params["job_id"], caller_of(request)))

    @router.post(job_api.CANCEL_JOB_PATH, **schema.operation("cancel_job", "End a job", _CANCELLED, _JOB))
    async def cancel(request: Request) -> Response:
        Query(request)
        job_id, caller = request.path_params["job_id"], caller_of(request)
        if not await jobs.cancel(job_id, caller):
            note_unchanged(request)
        return json_answer(await jobs.get(job_id, caller), 202)


def _types(router: APIRouter, jobs: Jobs) -> None:
    @router.get(job_api.JOB_TYPES_PATH, **schema.operation("list_job_types", "List job types", _TYPES))
    async def types(request: Request) -> Response:
        Query(request)
        found = [job_api.JobTypeView.model_validate(describe(kind)) for kind in jobs.registry.values()]
        return json_answer(job_api.JobTypesView(job_types=tuple(found)))

    @router.get(job_api.JOB_TYPE_PATH, **schema.operation("get_job_type", "Show a job type", _ONE_TYPE, _TYPE))
    async def one(request: Request) -> Response:
        Query(request)
        kind = jobs.registry.type(request.path_params["name"])
        return json_answer(job_api.JobTypeView.model_validate(describe(kind)))


def _providers(router: APIRouter, providers: Providers) -> None:
    @router.get(
        job_api.PROVIDERS_PATH,
        **schema.operation(
            "list_providers", "List providers, and how often each was right", _PROVIDERS, token=schema.BRIDGE
        ),
    )
    async def listed(request: Request) -> Response:
        Query(request)
        return json_answer(job_api.ProvidersView(providers=tuple(await providers.all())))

    @router.post(
        job_api.SET_ASIDE_PATH,
        **schema.operation(
            "set_provider_aside",
            "Set a provider aside",
            _PROVIDER,
            _WORKER,
            body="SetAsideRequest",
            description="It takes no more executions; should it answer one all the same, that does not count.",
        ),
    )
    async def set_aside(request: Request) -> Response:
        asked = await body_of(job_api.SetAsideRequest, request)
        worker = request.path_params["worker_id"]
        note(request, target=worker)
        return json_answer(await providers.set_aside(worker, asked.reason, caller_of(request)))

    @router.post(
        job_api.RESTORE_PATH,
        **schema.operation("restore_provider", "Let a provider that was set aside work again", _PROVIDER, _WORKER),
    )
    async def restore(request: Request) -> Response:
        Query(request)
        worker = request.path_params["worker_id"]
        note(request, target=worker)
        return json_answer(await providers.restore(worker))
