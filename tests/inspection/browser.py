"""Opens pages in headless Chromium, for the tests with the mark `browser`: `make browser` installs what they need."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ('chromium', 'chromium-browser', 'google-chrome')
OPTIONS = ('--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--window-size=1280,1000')
# Counts the requests of a page; the page itself and its data are none.
REQUESTS = "return performance.getEntriesByType('resource').map((entry) => entry.name)"


class Browser:
    """A browser with one page.

    Attributes:
        driver: Selenium's driver.
        folder: where pages are written, and what they save.
    """

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, page: str) -> None:
        """Opens a page from a file, with an empty console."""
        self.console()
        path = self.folder / 'page.html'
        path.write_text(page, encoding='utf-8')
        self.driver.get(path.as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Returns the result of a script in the page, after the page has drawn again."""
        done = arguments and f'const given = [...arguments].slice(0, {len(arguments)});' or 'const given = [];'
        waited = f'{done} const done = arguments[arguments.length - 1]; const result = (() => {{ {script} }})();'
        frames = 'requestAnimationFrame(() => requestAnimationFrame(() => done(result)));'
        return self.driver.execute_async_script(f'{waited} {frames}', *arguments)

    def show(self, view: str, **state: Any) -> dict[str, str]:
        """Shows a view, with changes of the page's state, and returns what the view counts."""
        self.run('Object.assign(state, given[1]); show(given[0]);', view, state)
        return self.run(
            f'const {{ node, scroller }} = VIEWS.{view}; return {{ ...(scroller || {{ node }}).node.dataset }};'
        )

    def said(self) -> str:
        """Returns the text that the page says about the token under the cursor."""
        return self.run("return document.getElementById('said').textContent")

    def console(self) -> list[str]:
        """Returns the errors and warnings of the console since the last call."""
        return [one['message'] for one in self.driver.get_log('browser')]

    def requests(self) -> list[str]:
        """Returns the addresses that the page has requested."""
        return self.run(REQUESTS)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Yields a browser; skips the test if there is no browser or no Selenium."""
    webdriver = pytest.importorskip('selenium.webdriver', reason='needs Selenium: make browser')
    program = next(filter(None, map(shutil.which, NAMES)), None)
    driver = shutil.which('chromedriver')
    if program is None or driver is None:
        pytest.skip('needs Chromium with its driver: make browser')
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    options.add_experimental_option('prefs', {'download.default_directory': str(folder)})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    opened.set_script_timeout(30)
    try:
        yield Browser(opened, folder)
    finally:
        opened.quit()
