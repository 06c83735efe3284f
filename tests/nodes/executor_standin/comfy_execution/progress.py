"""The registry that a prompt's progress goes through, and what listens to it."""


class ProgressHandler:
    def __init__(self, name):
        self.name = name
        self.enabled = True

    def start_handler(self, node_id, state, prompt_id):
        pass

    def update_handler(self, node_id, value, max_value, state, prompt_id, image=None):
        pass

    def finish_handler(self, node_id, state, prompt_id):
        pass


class ProgressRegistry:
    def __init__(self, prompt_id, dynprompt):
        self.prompt_id, self.dynprompt = prompt_id, dynprompt
        self.handlers = {}

    def register_handler(self, handler):
        self.handlers[handler.name] = handler

    def start_progress(self, node_id):
        for handler in self.handlers.values():
            handler.start_handler(node_id, {}, self.prompt_id)

    def update_progress(self, node_id, value, max_value):
        for handler in self.handlers.values():
            handler.update_handler(node_id, value, max_value, {}, self.prompt_id)

    def finish_progress(self, node_id):
        for handler in self.handlers.values():
            handler.finish_handler(node_id, {}, self.prompt_id)
