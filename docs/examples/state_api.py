"""A web service that answers from a processor's state. Run it with `uvicorn --factory state_api:web_service`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from holdfast import AsyncStateClient, StateAway

if TYPE_CHECKING:
    from fastapi import FastAPI


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, AsyncStateClient]]:
    """Opens one client for the life of the service. All requests share its connections."""
    async with AsyncStateClient("shop", timeout_s=2) as shop:
        yield {"shop": shop}


async def totals_of(customer: str, request: Request) -> JSONResponse:
    """Answers with a customer's totals, and with their age in seconds."""
    try:
        answer = await request.state.shop.key("totals", customer, max_age=10)
    except StateAway as away:
        headers = {"Retry-After": str(ceil(away.retry_after_s))}
        return JSONResponse({"error": away.message}, status_code=503, headers=headers)
    if not answer.found:
        return JSONResponse({"error": f"There is no customer {customer}."}, status_code=404)
    return JSONResponse({"customer": customer, "totals": answer.state, "age_s": answer.age_s})


def web_service() -> "FastAPI":
    """Makes the service."""
    from fastapi import FastAPI

    service = FastAPI(lifespan=lifespan)
    service.get("/customers/{customer}", response_model=None)(totals_of)
    return service
