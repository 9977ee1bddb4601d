//! Charts as SVG that reads on a light and on a dark page.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 16.0;
/// Room for the names of rows.
const NAMES: f64 = 170.0;
const ROW: f64 = 22.0;
const HEADER: f64 = 64.0;

/// The colours, by class; middle tones that stand out from white and from black.
const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}\
.title{font-size:15px;font-weight:600}.head{font-weight:600}.muted{fill:#59636e}.end{text-anchor:end}.mid{text-anchor:middle}\
.grid{stroke:#d1d9e0;stroke-width:1}.page{fill:#ffffff}\
.a{fill:#2f81f7;stroke:#2f81f7}.b{fill:#e0823d;stroke:#e0823d}.c{fill:#2da44e;stroke:#2da44e}.d{fill:#a371f7;stroke:#a371f7}\
.faint{opacity:.45}.line{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.muted{fill:#9198a1}.grid{stroke:#3d444d}.page{fill:#0d1117}}";

/// How values become places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    pub least: f64,
    pub most: f64,
    pub is_log: bool,
}

impl Scale {
    /// From 0 to a round number that is no less than all values.
    pub fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let most = values.into_iter().fold(0.0, f64::max).max(1e-9);
        let step = step(most);
        Self { least: 0.0, most: (most / step).ceil() * step, is_log: false }
    }

    /// From one power of ten to another.
    pub fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for value in values.into_iter().filter(|value| *value > 0.0) {
            (least, most) = (least.min(value), most.max(value));
        }
        if most == 0.0 {
            (least, most) = (1.0, 10.0);
        }
        let least = 10_f64.powf(least.log10().floor());
        let most = 10_f64.powf(most.log10().ceil()).max(least * 10.0);
        Self { least, most, is_log: true }
    }

    /// Where between 0 and 1 a value is.
    fn place(self, value: f64) -> f64 {
        let place = if self.is_log {
            (value.max(self.least) / self.least).log10() / (self.most / self.least).log10()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.most / self.least).log10().round() as i32;
            return (0..=decades).map(|power| self.least * 10_f64.powi(power)).collect();
        }
        let step = step(self.most);
        (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= self.most * 1.000_1).collect()
    }
}

/// The distance of ticks: 1, 2 or 5 times a power of ten, at least three and a half.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf((most / 4.0).log10().floor());
    let step = [5.0, 2.0, 1.0].into_iter().find(|step| most / (step * power) >= 4.0);
    step.unwrap_or(1.0) * power
}

/// A number for an axis: 20,000 as 20k, 0.5 as it is.
pub fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        value if value >= 1e3 => format!("{}k", trimmed(value / 1e3)),
        value => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What stands in a row.
#[derive(Debug)]
pub enum Shape {
    /// A bar from the left, with its value beside it.
    Bar { value: f64, class: &'static str },
    /// A line through ascending values, with a dot at each: the first is the largest.
    Span { values: Vec<f64>, class: &'static str },
}

impl Shape {
    fn values(&self) -> Vec<f64> {
        match self {
            Self::Bar { value, .. } => vec![*value],
            Self::Span { values, .. } => values.clone(),
        }
    }
}

/// Named rows under a heading.
#[derive(Debug)]
pub struct Panel {
    pub title: String,
    pub rows: Vec<(String, Vec<Shape>)>,
}

/// Panels of rows below each other on one axis.
pub fn rows(title: &str, unit: &str, legend: &[(&str, &str)], is_log: bool, panels: &[Panel]) -> String {
    let all =
        || panels.iter().flat_map(|panel| &panel.rows).flat_map(|(_, shapes)| shapes).flat_map(Shape::values);
    let scale = if is_log { Scale::log(all()) } else { Scale::linear(all()) };
    let (left, right) = (MARGIN + NAMES, WIDTH - MARGIN - 52.0);
    let x = |value: f64| left + scale.place(value) * (right - left);
    let mut svg = Svg::new(title, legend);
    let mut y = HEADER;
    for panel in panels {
        svg.text(MARGIN, y + 14.0, "head", &panel.title);
        let top = y + 24.0;
        let bottom = top + ROW * panel.rows.len() as f64 + 4.0;
        for tick in scale.ticks() {
            svg.line((x(tick), top), (x(tick), bottom), "grid");
            svg.text(x(tick), bottom + 14.0, "muted mid", &short(tick));
        }
        svg.text(right + 18.0, bottom + 14.0, "muted", unit);
        for (index, (name, shapes)) in panel.rows.iter().enumerate() {
            let middle = top + ROW * (index as f64 + 0.5) + 2.0;
            svg.text(left - 8.0, middle + 4.0, "end", name);
            let thickness = (ROW - 6.0) / shapes.len().max(1) as f64;
            for (place, shape) in shapes.iter().enumerate() {
                match shape {
                    Shape::Bar { value, class } => {
                        let above = middle - (ROW - 6.0) / 2.0 + thickness * place as f64;
                        svg.bar(left, above, x(*value) - left, thickness - 1.0, class);
                        if shapes.len() == 1 || thickness >= 7.0 {
                            svg.small(x(*value) + 4.0, above + thickness / 2.0 + 3.0, &short(value.round()));
                        }
                    }
                    Shape::Span { values, class } => {
                        if let (Some(first), Some(last)) = (values.first(), values.last()) {
                            svg.line((x(*first), middle), (x(*last), middle), class);
                        }
                        for (index, value) in values.iter().enumerate() {
                            svg.dot(x(*value), middle, if index == 0 { 5.0 } else { 3.5 }, class);
                        }
                    }
                }
            }
        }
        y = bottom + 30.0;
    }
    svg.finish(y)
}

/// A line through points.
#[derive(Debug)]
pub struct Series {
    pub class: &'static str,
    pub is_dashed: bool,
    pub points: Vec<(f64, f64)>,
}

/// Lines on one pair of axes.
#[derive(Debug)]
pub struct Plot {
    pub title: String,
    pub series: Vec<Series>,
}

/// Plots beside each other, with the same axes.
pub fn lines(title: &str, x_name: &str, y_name: &str, legend: &[(&str, &str)], plots: &[Plot]) -> String {
    const HEIGHT: f64 = 200.0;
    let points = || plots.iter().flat_map(|plot| &plot.series).flat_map(|series| &series.points);
    let (across, up) =
        (Scale::linear(points().map(|point| point.0)), Scale::linear(points().map(|point| point.1)));
    let room = (WIDTH - 2.0 * MARGIN) / plots.len().max(1) as f64;
    let bottom = HEADER + 24.0 + HEIGHT;
    let mut svg = Svg::new(title, legend);
    for (index, plot) in plots.iter().enumerate() {
        let left = MARGIN + room * index as f64 + 44.0;
        let right = MARGIN + room * (index as f64 + 1.0) - 12.0;
        let x = |value: f64| left + across.place(value) * (right - left);
        let y = |value: f64| bottom - up.place(value) * HEIGHT;
        svg.text(left, HEADER + 12.0, "head", &plot.title);
        for tick in up.ticks() {
            svg.line((left, y(tick)), (right, y(tick)), "grid");
            svg.text(left - 6.0, y(tick) + 4.0, "muted end", &short(tick));
        }
        // Every second one where they would touch.
        let ticks = across.ticks();
        let every = if (right - left) / ticks.len() as f64 <= 34.0 { 2 } else { 1 };
        for tick in ticks.into_iter().step_by(every) {
            svg.text(x(tick), bottom + 16.0, "muted mid", &short(tick));
        }
        for series in &plot.series {
            let points: Vec<_> = series.points.iter().map(|&(a, b)| (x(a), y(b))).collect();
            svg.path(&points, series.class, series.is_dashed);
        }
    }
    svg.text(MARGIN, bottom + 38.0, "muted", &format!("across: {x_name}; up: {y_name}"));
    svg.finish(bottom + 54.0)
}

struct Svg {
    title: String,
    body: String,
}

impl Svg {
    fn new(title: &str, legend: &[(&str, &str)]) -> Self {
        let mut svg = Self { title: title.into(), body: String::new() };
        svg.text(MARGIN, 24.0, "title", title);
        let mut x = MARGIN;
        for (name, class) in legend {
            svg.dot(x + 5.0, 43.0, 5.0, class);
            svg.text(x + 15.0, 47.0, "muted", name);
            x += 34.0 + 6.6 * name.chars().count() as f64;
        }
        svg
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.add(format_args!(r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escaped(text)));
    }

    fn small(&mut self, x: f64, y: f64, text: &str) {
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" class="muted" style="font-size:9px">{}</text>"#,
            escaped(text)
        ));
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.add(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#
        ));
    }

    fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        let width = width.max(1.0);
        self.add(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="1.5" class="{class}"/>"#
        ));
    }

    fn dot(&mut self, x: f64, y: f64, radius: f64, class: &str) {
        self.add(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" class="{class}"/>"#));
    }

    fn path(&mut self, points: &[(f64, f64)], class: &str, is_dashed: bool) {
        let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dashed = if is_dashed { " dashed" } else { "" };
        // The class of a colour fills; a line must not.
        self.add(format_args!(
            r#"<polyline points="{}" class="{class} line{dashed}" style="fill:none"/>"#,
            path.join(" ")
        ));
        for (x, y) in points {
            self.dot(*x, *y, 3.0, class);
        }
    }

    fn finish(self, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" class=\"page\"/>\n{}</svg>\n",
            escaped(&self.title),
            self.body
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_ticks() {
        assert_eq!(Scale::linear([18_700.0]).ticks(), [0.0, 5_000.0, 10_000.0, 15_000.0, 20_000.0]);
        assert_eq!(Scale::log([3.0, 5_400.0]).ticks(), [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!(Scale::linear([]).place(0.0), 0.0);
        assert_eq!(Scale::log([0.0]).place(0.0), 0.0);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.5, 20.0, 1_500.0, 2e6].map(short), ["0.5", "20", "1.5k", "2M"]);
    }

    #[test]
    fn text_cannot_break_the_picture() {
        assert!(rows("a < b & c", "", &[], true, &[]).contains("a &lt; b &amp; c"));
    }
}
