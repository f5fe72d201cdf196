"""How a launch ends: it fails when a process fails, with the reason as its last line, and leaves nothing running."""

from collections import deque
import re
import shutil
import signal

from launch.actions import EmitEvent, OpaqueFunction, RegisterEventHandler, Shutdown
from launch.event_handlers import OnProcessExit, OnProcessIO, OnProcessStart, OnShutdown
from launch.events import matches_action
from launch.events.process import SignalProcess

# Lines of a process's stderr that are kept to find the reason of its failure.
KEPT_LINES = 50

# A line of the log of ROS: severity, time, logger, message.
LOG_LINE = re.compile(r'\[(DEBUG|INFO|WARN|ERROR|FATAL)\] \[[^]]*\] \[[^]]*\]: (.*)')
COLOUR = re.compile(r'\x1b\[[0-9;]*m')


def rejecting(function):
    """An opaque function that ends the launch if it raises a RuntimeError, with the reason as the last line.

    Launch itself would put words of its own before the reason, and leave running what other launch files have started.
    """

    def call(context):
        try:
            return function(context)
        except RuntimeError as error:
            report(context, str(error))
            return [Shutdown(reason=str(error))]

    return call


def report(context, failure):
    """Reports a failure to launch in a way that makes it end with an exit code that is not 0."""
    context.asyncio_loop.call_exception_handler({'message': failure})


class Ending:
    """Watches the processes of a launch, which all end when an essential one ends or one fails.

    An included launch file (`is_whole` is false) reports what has failed, and the including one continues.
    """

    def __init__(self, is_whole):
        self._is_whole = is_whole
        self._watched = {}
        self._running = {}
        self._failures = []

    def handlers(self):
        """To be registered before the processes, so that their own handlers, which write their output, run first."""
        return [
            RegisterEventHandler(OnProcessStart(on_start=self._started)),
            RegisterEventHandler(OnProcessIO(on_stderr=self._heard)),
            RegisterEventHandler(OnProcessExit(on_exit=self._ended)),
            RegisterEventHandler(OnShutdown(on_shutdown=lambda event, context: self._report_at_end(context))),
        ]

    def essential(self, process, name):
        """Starts an essential process. Failing during the shutdown is a failure as well."""
        return self._watch(process, Watched(name, True, f'{name} ', list))

    def helper(self, process, name, failure, then=list):
        """Starts a process whose failure is reported as `failure`; `then` returns the actions after its success."""
        return self._watch(process, Watched(name, False, f'{failure}: {name} ', then))

    def _watch(self, process, watched):
        self._watched[process] = watched
        return [process, awaited(process)]

    def stop(self, reason):
        """Ends everything; launch logs which process caused it."""
        # On SIGINT while it starts, Python prints a traceback; on SIGTERM it just ends.
        helpers = [process for process in self._running.values() if process in self._watched]
        asked = [
            EmitEvent(event=SignalProcess(signal_number=signal.SIGTERM, process_matcher=matches_action(helper)))
            for helper in helpers
            if not self._watched[helper].is_essential
        ]
        return [*asked, Shutdown(reason=reason)]

    def _started(self, event, _):
        self._running[event.pid] = event.action

    def _heard(self, event):
        if event.action in self._watched:
            self._watched[event.action].hear(event.text.decode(errors='replace'))

    def _ended(self, event, context):
        self._running.pop(event.pid, None)
        watched = self._watched.get(event.action)
        if context.is_shutdown:
            # What helpers log when they are shut down is no reason of a failure.
            if watched and watched.is_essential:
                self._note(watched, event.returncode)
            self._report_at_end(context)
            return []
        if not watched:
            return []
        self._note(watched, event.returncode)
        if event.returncode == 0 and not watched.is_essential:
            return watched.then()
        if self._is_whole:
            return self.stop(f'{watched.name} has ended')
        self._report(context)
        return []

    def _note(self, watched, returncode):
        if returncode != 0:
            self._failures.append(watched.failure + end_in_words(returncode, reason_of(watched.lines)))

    def _report_at_end(self, context):
        if not self._running:
            self._report(context)

    def _report(self, context):
        for failure in self._failures:
            report(context, failure)
        self._failures.clear()


class Watched:
    """A process and the end of its log."""

    def __init__(self, name, is_essential, failure, then):
        self.name, self.is_essential, self.failure, self.then = name, is_essential, failure, then
        self.lines = deque([''], maxlen=KEPT_LINES)

    def hear(self, text):
        # The last line may be incomplete.
        first, *rest = text.split('\n')
        self.lines[-1] += first
        self.lines.extend(rest)


def awaited(process):
    """Makes launch wait for the end of a process, even if the launch file that has started it fails.

    Otherwise launch forgets the processes of a launch file that raises an exception later, and leaves them running.
    """

    def keep(context):
        future = process.get_asyncio_future()
        # There is none during a shutdown.
        if future is not None:
            context.add_completion_future(future)

    return OpaqueFunction(function=keep)


def ended_with_launch(context, name):
    """Options of a process that make the system send it this signal when launch itself is killed."""
    # Our prefix would replace the user's.
    if 'launch-prefix' in context.launch_configurations or not shutil.which('setpriv'):
        return {}
    return {'prefix': f'setpriv --pdeathsig {name}'}


def reason_of(lines):
    """The last error in the log of a process with its further lines, or else the last line, as one line."""
    lines = [COLOUR.sub('', line).rstrip() for line in lines]
    errors = [index for index, line in enumerate(lines) if (found := LOG_LINE.match(line)) and found[1] in ('ERROR', 'FATAL')]
    if not errors:
        return next((line.strip() for line in reversed(lines) if line), '')
    message = [LOG_LINE.match(lines[errors[-1]])[2]]
    for line in lines[errors[-1] + 1 :]:
        if LOG_LINE.match(line):
            break
        message.append(line.strip())
    return '; '.join(filter(None, message))


def end_in_words(returncode, reason):
    if returncode == -signal.SIGKILL:
        # It could not report why.
        return 'was ended by SIGKILL'
    how = f'failed with exit code {returncode}' if returncode > 0 else f'was ended by {signal.Signals(-returncode).name}'
    return f'{how}: {reason}' if reason else how
