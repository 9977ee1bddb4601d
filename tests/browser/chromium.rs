//! A Chromium without a window, and the page in it.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use headless_chrome::{
    Browser, LaunchOptions, Tab,
    protocol::cdp::{Emulation, Log, Page, Runtime, types::Event},
};
use serde_json::Value as Json;

/// How long the browser may take over anything; a busy machine is slow to draw.
const PATIENCE: Duration = Duration::from_secs(120);

/// A page, and everything that went wrong in it.
pub(crate) struct Seen {
    tab: Arc<Tab>,
    complaints: Arc<Mutex<Vec<String>>>,
    _browser: Browser,
}

/// Where Chromium is.
fn chromium() -> PathBuf {
    let named = std::env::var_os("TEST_CHROMIUM").map(PathBuf::from);
    let path = named.unwrap_or_else(|| "/usr/bin/chromium".into());
    assert!(
        path.exists(),
        "these tests need Chromium at {} (or where TEST_CHROMIUM says); scripts/test installs it",
        path.display()
    );
    path
}

impl Seen {
    /// Opens a page in a browser of its own, in a window of this size.
    pub(crate) fn open(url: &str, size: (u32, u32)) -> Self {
        let options = LaunchOptions::default_builder()
            .path(Some(chromium()))
            // Whoever runs tests in a container is root, and root has no sandbox.
            .sandbox(false)
            .window_size(Some(size))
            .idle_browser_timeout(Duration::from_secs(3_600))
            .args(vec!["--disable-dev-shm-usage".as_ref(), "--hide-scrollbars".as_ref()])
            .build()
            .unwrap();
        let browser = Browser::new(options).expect("a browser");
        let tab = browser.new_tab().unwrap();
        tab.set_default_timeout(PATIENCE);
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&complaints);
        tab.add_event_listener(Arc::new(move |event: &Event| {
            let complaint = match event {
                Event::RuntimeExceptionThrown(event) => Some(format!("{:?}", event.params.exception_details)),
                Event::LogEntryAdded(event) if event.params.entry.level == Log::LogEntryLevel::Error => {
                    Some(event.params.entry.text.clone())
                }
                Event::RuntimeConsoleAPICalled(event)
                    if event.params.Type == Runtime::ConsoleAPICalledEventTypeOption::Error =>
                {
                    Some(format!("{:?}", event.params.args))
                }
                _ => None,
            };
            if let Some(complaint) = complaint {
                heard.lock().unwrap().push(complaint);
            }
        }))
        .unwrap();
        tab.enable_log().unwrap().enable_runtime().unwrap();
        tab.navigate_to(url).unwrap().wait_until_navigated().unwrap();
        let seen = Self { tab, complaints, _browser: browser };
        seen.resize(size);
        seen
    }

    /// Errors of the console, of scripts and of the content security policy so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap().clone()
    }

    /// What an expression is.
    pub(crate) fn eval(&self, expression: &str) -> Json {
        let text = format!("JSON.stringify({expression})");
        let result = self.tab.evaluate(&text, false).unwrap_or_else(|error| panic!("{expression}: {error}"));
        match result.value {
            Some(Json::String(text)) => serde_json::from_str(&text).unwrap(),
            _ => Json::Null,
        }
    }

    /// The text of the first element that fits; empty if there is none.
    pub(crate) fn text(&self, selector: &str) -> String {
        let found = self.eval(&format!("(document.querySelector({selector:?}) || {{}}).innerText || ''"));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// The number in an element, as people read it: `1,234`.
    pub(crate) fn number(&self, selector: &str) -> Option<u64> {
        match self.text(selector).replace(',', "").trim() {
            "·" => Some(0),
            digits => digits.parse().ok(),
        }
    }

    pub(crate) fn press(&self, key: &str) {
        self.tab.press_key(key).unwrap();
    }

    /// Gives the page this size, as a telephone or a window has.
    pub(crate) fn resize(&self, (width, height): (u32, u32)) {
        self.tab
            .call_method(Emulation::SetDeviceMetricsOverride {
                width,
                height,
                device_scale_factor: 1.0,
                mobile: false,
                scale: None,
                screen_width: None,
                screen_height: None,
                position_x: None,
                position_y: None,
                dont_set_visible_size: None,
                screen_orientation: None,
                viewport: None,
                display_feature: None,
                device_posture: None,
            })
            .unwrap();
    }

    /// What the reader prefers: `prefers-color-scheme` and the like.
    pub(crate) fn prefer(&self, features: &[(&str, &str)]) {
        let features = features
            .iter()
            .map(|(name, value)| Emulation::MediaFeature { name: (*name).into(), value: (*value).into() });
        self.tab
            .call_method(Emulation::SetEmulatedMedia { media: None, features: Some(features.collect()) })
            .unwrap();
    }

    /// Takes a picture of the window.
    pub(crate) fn screenshot(&self, file: &Path) {
        let format = Page::CaptureScreenshotFormatOption::Png;
        let png = self.tab.capture_screenshot(format, None, None, true).unwrap();
        std::fs::write(file, png).unwrap();
    }
}
