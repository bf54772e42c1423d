//! Tables for people: words are aligned to the left, numbers to the right. Pure, no I/O.

/// What stands between two columns.
const GAP: &str = "  ";

/// A table: its heading, and rows that may have fewer cells than the heading.
#[derive(Debug, Default)]
pub(in crate::cli) struct TextTable {
    /// What stands above the table.
    pub(in crate::cli) title: Option<&'static str>,
    /// What stands above the heading of the columns from the second one on: a name, and its number of columns.
    pub(in crate::cli) groups: Vec<(String, usize)>,
    /// The rows, the first of which is the heading.
    pub(in crate::cli) rows: Vec<Vec<String>>,
    /// The columns of words. All others have numbers.
    words: Vec<usize>,
}

impl TextTable {
    /// Returns a table without rows. The columns with the indexes `words` have words, all others numbers.
    pub(in crate::cli) fn new(
        words: &[usize],
        heading: impl IntoIterator<Item: Into<String>>,
    ) -> Self {
        Self {
            rows: vec![heading.into_iter().map(Into::into).collect()],
            words: words.to_vec(),
            ..Self::default()
        }
    }

    /// Removes the column with this heading; does nothing if there is none. The table has no groups.
    pub(in crate::cli) fn remove(&mut self, heading: &str) {
        let Some(removed) = self.rows[0].iter().position(|name| name == heading) else {
            return;
        };
        for row in &mut self.rows {
            if removed < row.len() {
                row.remove(removed);
            }
        }
        let left = self.words.iter().filter(|&&column| column != removed);
        self.words = left
            .map(|&column| column - usize::from(column > removed))
            .collect();
    }

    pub(in crate::cli) fn lines(&self) -> Vec<String> {
        let widths = self.widths();
        let line = |row: &Vec<String>| self.padded(row, &widths).join(GAP).trim_end().to_owned();
        let title = self.title.map(str::to_owned);
        let head = title.into_iter().chain(self.group_line(&widths));
        head.chain(self.rows.iter().map(line)).collect()
    }

    /// Returns the lines of the table in Markdown, without title and groups.
    pub(in crate::cli) fn markdown(&self) -> Vec<String> {
        let widths = self.widths();
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let rows = self.rows.iter().map(|row| line(self.padded(row, &widths)));
        let mut lines: Vec<_> = rows.collect();
        let rule = widths.iter().enumerate().map(|(column, &width)| {
            if self.words.contains(&column) {
                "-".repeat(width)
            } else {
                "-".repeat(width - 1) + ":"
            }
        });
        lines.insert(1, line(rule.collect()));
        lines
    }

    /// Returns the cells of a row, each as wide as its column.
    fn padded(&self, row: &[String], widths: &[usize]) -> Vec<String> {
        let cell = |(column, (cell, &width)): (usize, (&String, &usize))| {
            if self.words.contains(&column) {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        };
        row.iter().zip(widths).enumerate().map(cell).collect()
    }

    /// Returns the width of each column. The first column of a group makes room for the name of the group.
    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<_> = (0..columns).map(width).collect();
        let mut first = 1;
        for (name, columns) in &self.groups {
            let group = &mut widths[first..first + columns];
            let width = group.iter().sum::<usize>() + GAP.len() * (columns - 1);
            group[0] += name.chars().count().saturating_sub(width);
            first += columns;
        }
        widths
    }

    /// Returns the line with the names of the groups, each at the right end of its columns.
    fn group_line(&self, widths: &[usize]) -> Option<String> {
        self.groups.first()?;
        let mut parts = vec![" ".repeat(widths[0])];
        let mut rest = &widths[1..];
        for (name, columns) in &self.groups {
            let (group, after) = rest.split_at(*columns);
            let width = group.iter().sum::<usize>() + GAP.len() * columns;
            parts.push(format!("{name:>width$}"));
            rest = after;
        }
        Some(parts.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_their_heading() {
        let mut table = TextTable::new(&[0], ["what", "µs", "max"]);
        table
            .rows
            .push(vec!["a long name".into(), "1.00".into(), "2".into()]);
        table.rows.push(vec!["b".into(), "-".into()]);
        let expected = [
            "what           µs  max",
            "a long name  1.00    2",
            "b               -",
        ];
        assert_eq!(table.lines(), expected);
    }
}
