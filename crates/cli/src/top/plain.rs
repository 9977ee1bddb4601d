//! A picture as lines of text, for pipes.

use std::io;

use crate::{Output, output::counted, table::table};
use delayline_watch::picture::Picture;

use crate::top::text;

pub(super) fn print(picture: &Picture, output: &mut Output) -> io::Result<()> {
    output.line(text::readable(&picture.verdict.headline))?;
    for line in text::trouble(picture)
        .into_iter()
        .chain(picture.verdict.more.iter().map(|more| text::readable(&more.text)))
    {
        output.line(format!("  {line}"))?;
    }
    output.line(text::place(picture))?;
    if picture.counted.is_none() {
        return Ok(());
    }
    let busy =
        picture.levels.iter().filter(|level| level.ready != Some(0) || level.handing_on.unwrap_or(0) > 0);
    let rows: Vec<_> = busy
        .map(|level| {
            vec![
                format!("{:02}", level.level),
                text::span(level.wait_ms),
                level.ready.map_or_else(|| "missing".into(), |ready| text::number(Some(ready))),
                text::number(level.handing_on),
                text::number(level.stuck),
            ]
        })
        .collect();
    let empty = picture.levels.len() - rows.len();
    if !rows.is_empty() {
        output.line(table(&[">level", ">stays", ">waiting", ">handed on", ">stuck"], rows))?;
    }
    output.line(format!("{} empty", counted(empty as u64, "level")))?;
    let all = [
        ("waiting", counted(picture.waiting, "message")),
        ("handed on", format!("{}, {} stuck", text::number(picture.handing_on), text::number(picture.stuck))),
        ("unroutable", text::kept(picture.unroutable, picture.unroutable_last_minute)),
        ("parked", text::kept(picture.parked, picture.parked_last_minute)),
        ("failed", format!("{}, not taken yet", text::number(picture.retry_queue))),
    ];
    for (name, value) in all {
        output.line(format!("{name:13}{value}"))?;
    }
    for forecast in &picture.forecast {
        output.line(format!("{:13}{}", format!("next {}", forecast.within), text::due(forecast)))?;
    }
    for unseen in &picture.unseen {
        output.line(format!("not seen: {}", text::readable(unseen)))?;
    }
    Ok(())
}
