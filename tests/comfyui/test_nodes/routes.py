"""GET /test/state shows the process: what is switched, registered, taken and conflicting, and the device's counters."""
import sys
import time

from aiohttp import web
from server import PromptServer


def pack():
    """The pack under test, under whatever name ComfyUI loaded it."""
    return next(module for name, module in list(sys.modules.items())
                if name.endswith("metal-kernels") and hasattr(module, "metal_kernels"))


def submodule(path):
    return sys.modules[f"{pack().__name__}.{path}"]


def device():
    """softmetal.counters; None on a Mac."""
    return getattr(sys.modules.get("softmetal"), "counters", None)


def state():
    kernels, switch = pack().metal_kernels, submodule("nodes.switch.state")
    counters = device()
    return {
        "workflow": {each.kernel.name: each.workflow for each in kernels._installation.switches
                     if each.workflow is not None},
        "registered": list(kernels.registered_now()),
        "taken": kernels.taken(),
        "conflicts": switch.conflicts(),
        "calls": counters and counters.all_calls(),
        "peaks": counters and counters.memory_peaks(),
    }


def add_routes():
    routes = PromptServer.instance.routes

    @routes.get("/test/state")
    async def get_state(request):
        return web.json_response(state())

    @routes.get("/test/status")
    async def get_status(request):
        return web.json_response(submodule("nodes.status.report").collect())

    @routes.get("/test/taken/{node}")
    async def get_taken(request):
        return web.json_response(submodule("nodes.switch.state").kernels_taken(request.match_info["node"]))

    @routes.post("/test/reset")
    async def reset(request):
        pack().metal_kernels.reset_counters()
        if device():
            device().reset()
        return web.json_response({})

    @routes.post("/test/mode")
    async def mode(request):
        """{kernel: mode}; "everything" for all of them first."""
        modes = await request.json()
        everything = modes.pop("everything", None)
        pack().metal_kernels.set_mode(*([everything] if everything else []), **modes)
        return web.json_response({})

    @routes.get("/test/processor")
    async def processor(request):
        """Processor seconds of the process so far, all threads."""
        return web.json_response(time.process_time())

    @routes.post("/test/hooks")
    async def hooks(request):
        """{"install": false} takes the executor's hooks out; the answer lists what stands on ComfyUI's classes."""
        import execution
        from comfy_execution import progress, utils

        if "install" in (body := await request.json()):
            getattr(submodule("nodes.execution"), "install" if body["install"] else "uninstall")()
        found = (execution.PromptExecutor.execute_async, progress.ProgressRegistry.__init__,
                 utils.CurrentNodeContext.__enter__, utils.CurrentNodeContext.__exit__)
        return web.json_response({"modules": [function.__code__.co_filename for function in found]})
