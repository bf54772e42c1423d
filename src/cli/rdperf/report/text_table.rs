//! A table as text. Pure, no I/O.

/// A table: its rows, the first of which is the heading. The first column is aligned to the left, the others to the right.
#[derive(Debug, Default)]
pub(in crate::cli::rdperf) struct TextTable {
    rows: Vec<Vec<String>>,
    /// What stands above the heading of the columns from the second one on: a name, and its number of columns.
    groups: Vec<(String, usize)>,
    /// What stands above the table.
    title: Option<&'static str>,
}

impl TextTable {
    /// Returns an empty table with a title.
    pub(in crate::cli::rdperf) fn titled(title: &'static str) -> Self {
        Self {
            title: Some(title),
            ..Self::default()
        }
    }

    /// Returns the rows, the first of which is the heading.
    pub(in crate::cli::rdperf) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Returns what stands above the heading of the columns from the second one on: a name, and its number of columns.
    pub(in crate::cli::rdperf) fn groups(&self) -> &[(String, usize)] {
        &self.groups
    }

    /// Returns what stands above the table.
    pub(in crate::cli::rdperf) fn title(&self) -> Option<&'static str> {
        self.title
    }

    /// Adds a row.
    pub(in crate::cli::rdperf) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Adds a name above the next `columns` columns.
    pub(in crate::cli::rdperf) fn group(&mut self, name: &str, columns: usize) {
        self.groups.push((name.to_owned(), columns));
    }

    /// Returns the lines of a table in Markdown. Its first two columns are aligned to the left.
    pub(in crate::cli::rdperf) fn markdown(&self) -> Vec<String> {
        let widths = self.widths();
        let cell = |column: usize, text: &str| {
            let padding = " ".repeat(widths[column] - text.chars().count());
            if column < 2 {
                format!(" {text}{padding} |")
            } else {
                format!(" {padding}{text} |")
            }
        };
        let line = |row: &Vec<String>| {
            let cells = row.iter().enumerate();
            let cells: String = cells.map(|(column, text)| cell(column, text)).collect();
            format!("|{cells}")
        };
        let rule = widths.iter().enumerate().map(|(column, &width)| {
            if column < 2 {
                format!(" {} |", "-".repeat(width))
            } else {
                format!(" {}: |", "-".repeat(width - 1))
            }
        });
        let mut lines: Vec<_> = self.rows.iter().map(line).collect();
        lines.insert(1, format!("|{}", rule.collect::<String>()));
        lines
    }

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
        let mut line = " ".repeat(widths[0]);
        let mut first = 1;
        for (name, columns) in &self.groups {
            let group = &widths[first..first + columns];
            let width = group.iter().sum::<usize>() + GAP.len() * columns;
            line.push_str(&" ".repeat(width - name.chars().count()));
            line.push_str(name);
            first += columns;
        }
        Some(line)
    }

    /// Returns the lines of the table.
    pub(in crate::cli::rdperf) fn lines(&self) -> Vec<String> {
        let widths = self.widths();
        let line = |row: &Vec<String>| {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let padding = " ".repeat(widths[column] - cell.chars().count());
                if column == 0 {
                    format!("{cell}{padding}")
                } else {
                    format!("{GAP}{padding}{cell}")
                }
            });
            cells.collect::<String>().trim_end().to_owned()
        };
        let title = self.title.map(str::to_owned);
        let head = title.into_iter().chain(self.group_line(&widths));
        head.chain(self.rows.iter().map(line)).collect()
    }
}

/// What stands between two columns.
const GAP: &str = "  ";

/// Returns a number with three digits.
pub(in crate::cli::rdperf) fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 || value == 0.0 => format!("{value:.2}"),
        value if value >= 0.1 => format!("{value:.3}"),
        value => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_their_heading() {
        let mut table = TextTable::default();
        table.row(vec!["what".into(), "µs".into(), "max".into()]);
        table.row(vec!["a long name".into(), "1.00".into(), "2".into()]);
        table.row(vec!["b".into(), "-".into()]);
        let expected = [
            "what           µs  max",
            "a long name  1.00    2",
            "b               -",
        ];
        assert_eq!(table.lines(), expected);
    }

    #[test]
    fn numbers_have_three_digits() {
        let values = [0.0, 0.0123, 0.123, 1.5, 12.34, 123.4];
        let expected = ["0.00", "0.0123", "0.123", "1.50", "12.3", "123"];
        assert_eq!(values.map(digits), expected);
    }
}
